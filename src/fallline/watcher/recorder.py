"""What a run leaves behind: every update and finding, written by a thread that training never waits for.

The training thread puts small rows into a queue and continues. A background thread turns tensors into numbers,
writes them to this rank's SQLite file and keeps a bounded history for the live line. Nothing here raises into
the program that trains: when the disk is full or read-only, training continues and stderr says so once.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import torch

from fallline.finding import Finding
from fallline.runs.store import Store, claim_folder
from fallline.runs.update import UpdateRow
from fallline.watcher.later import Number, sent_numbers

__all__ = ["Recorder", "as_it_is", "as_they_are"]

# A queue this long means that the writer cannot keep up (a stalled disk); further rows are counted, not kept.
QUEUE_LIMIT = 20_000
# How long a killed run may be behind, at most: while it is young, and later.
FLUSH_SECONDS, LATER_SECONDS = 2.0, 4.0
YOUNG = 10  # times that it was written
_NUMBERS = (int, float, Number)  # a union type made again at each look is slow


class Recorder:
    """Writes one rank of one run into `folder`.

    When `folder` already holds another run, a new one beside it is taken (`runs/a` → `runs/a-2`): see `.folder`.
    `listen(row)` is called in the background thread with each row after its tensors became numbers, `beat(folder, rank, world,
    ended)` every few seconds, `took` with the seconds of a processor that the thread has used.
    """

    def __init__(
        self,
        folder: Path | str,
        rank: int = 0,
        world: int = 1,
        meta: dict[str, Any] | None = None,
        *,
        listen: Callable[[UpdateRow], None] | None = None,
        beat: Callable[[Path, int, int, str], None] | None = None,
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.rank, self.world = rank, world
        self.dropped = 0
        self._listen = listen
        self._beat = beat
        self._took = took
        self._status = ""  # how the run ended
        self._queue: deque[tuple[str, Any]] = deque()  # both ends of which are safe between threads
        self._pid = os.getpid()
        self._closed = False
        self._wake = threading.Event()
        self._warned = False
        self._store: Store | None = None
        self.folder = Path(folder)
        try:
            self.folder = claim_folder(Path(folder), rank, world)
            if self.folder != Path(folder) and rank == 0:
                print(
                    f"fallline: {folder} already holds a run; this one goes to {self.folder}",
                    file=sys.stderr,
                )
        except OSError as error:
            self._elsewhere(error)
        described = {
            "rank": rank,
            "world": world,
            "pid": self._pid,
            "started": time.time(),
            **(meta or {}),
        }
        self._thread = threading.Thread(
            target=self._work, args=(described,), name="fallline-recorder", daemon=True
        )
        self._thread.start()

    def update(self, row: UpdateRow) -> None:
        """Record one update. Tensors on a device are copied there; nothing waits."""
        if not row.time:
            row.time = time.time()
        for name in ("loss", "grad_norm", "clip_norm", "scale", "skipped"):
            setattr(row, name, as_it_is(getattr(row, name)))
        self._put("update", row)

    def note(self, fields: tuple[Any, ...]) -> None:
        """The same, of what a row is made of, as it is now: the background thread makes it."""
        if self._closed or len(self._queue) >= QUEUE_LIMIT:
            self._put("fields", fields)  # which counts it
        else:
            self._queue.append(("fields", fields))

    def finding(self, finding: Finding) -> None:
        """Record a finding as soon as it is made."""
        self._put("finding", finding)

    def describe(self, key: str, value: Any) -> None:
        """Say what is known about the run or one of its objects; `value` is JSON.

        Keys in use: "script", "argv", "status"; one per object id with its facts, such as
        "optimizer#1": {"kind": "optimizer", "type": "AdamW", "model": "model#1", "wrapper": "ddp"}.
        """
        self._put("meta", (key, value))

    def later(self, job: Callable[[Store], None]) -> None:
        """Have something found out and written by the background thread."""
        self._put("job", job)

    def close(self, status: str = "finished") -> None:
        """Write what is left. `status`: "finished", "raised: ...", "exit 3", ... Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._put("meta", ("status", status))
        self._put("meta", ("ended", time.time()))
        self._status = status
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=30)

    def _put(self, what: str, thing: Any) -> None:
        # a forked child (a loader's worker) has this object but not its thread, and must not touch the file
        if self._closed or os.getpid() != self._pid:
            return
        if len(self._queue) >= QUEUE_LIMIT:
            self.dropped += 1
            return
        self._queue.append((what, thing))

    def _work(self, meta: dict[str, Any]) -> None:
        self._guarded(lambda: self._open(meta))
        before, times = 0.0, 0
        while True:
            ending = self._closed
            batch = self._drain()
            if batch:
                self._guarded(lambda batch=batch: self._write(batch))  # type: ignore[misc]
                self._tell(batch)
            self._pulse()
            if ending:
                break
            now = thread_time()
            self._took(now - before)
            before, times = now, times + 1
            self._wake.wait(FLUSH_SECONDS if times <= YOUNG else LATER_SECONDS)
        if self._store is not None:
            self._guarded(self._store.close)

    def _open(self, meta: dict[str, Any]) -> None:
        store = Store.create(self.folder, self.rank)
        for key, value in meta.items():
            store.meta(key, value)
        store.commit()
        self._store = store

    def _drain(self) -> list[tuple[str, Any]]:
        batch: list[tuple[str, Any]] = []
        while self._queue and len(batch) < QUEUE_LIMIT:
            what, thing = self._queue.popleft()
            if what == "fields":
                what, thing = "update", UpdateRow(*thing)
            batch.append((what, thing))
        for what, thing in batch:
            if what == "update":
                _resolve(thing)
        return batch

    def _tell(self, batch: list[tuple[str, Any]]) -> None:
        """Hand the rows on, after they are safe on disk."""
        listen = self._listen
        if listen is None:
            return
        try:
            for what, thing in batch:
                if what == "update":
                    listen(thing)
        except Exception as error:
            self._listen = None
            print(f"fallline: the live line failed ({error!r}) and is off", file=sys.stderr)

    def _pulse(self) -> None:
        if self._beat is None or self._store is None:
            return
        try:
            self._beat(self.folder, self.rank, self.world, self._status if self._closed else "")
        except Exception as error:  # a disk that is full, for a start
            self._beat = None
            self._warn(error)

    def _write(self, batch: list[tuple[str, Any]]) -> None:
        store = self._store
        if store is None:
            return
        store.updates([thing for what, thing in batch if what == "update"])
        for what, thing in batch:
            if what == "finding":
                store.finding(thing)
            elif what == "meta":
                store.meta(*thing)
            elif what == "job":
                _attempt(thing, store)
        if self.dropped:
            store.meta("dropped", self.dropped)
        store.commit()

    def _guarded(self, action: Callable[[], None]) -> None:
        """A recorder that fails must not fail the training: it says so once and forgets the file."""
        try:
            action()
        except Exception as error:
            self._store = None
            self._warn(error)

    def _elsewhere(self, error: OSError) -> None:
        """The folder cannot be made: what this run shows need not be lost for that."""
        if self.world > 1:  # the ranks would not find each other
            self._warn(error)
            return
        wanted = self.folder
        try:
            self.folder = claim_folder(Path(tempfile.mkdtemp(prefix="fallline-")) / "run", 0, 1)
        except OSError:
            self._warn(error)
            return
        print(
            f"fallline: cannot write the run to {wanted} ({error.strerror or error}); it goes to {self.folder}",
            file=sys.stderr,
        )

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = getattr(error, "strerror", None) or error
            print(
                f"fallline: cannot write the run to {self.folder} ({reason}); training continues, unrecorded",
                file=sys.stderr,
            )


def _attempt(job: Callable[[Store], None], store: Store) -> None:
    """A job that fails leaves a line behind, not a run without a record."""
    try:
        job(store)
    except sqlite3.Error:
        raise  # the disk is full: the whole record ends
    except Exception as error:
        store.meta("not recorded", f"{type(error).__name__}: {error}")


def as_it_is(value: Any) -> Any:
    """The value as it is now: scripts change losses in place, and the background thread reads later."""
    if value is None or isinstance(value, _NUMBERS):
        return value
    try:
        return value.item() if value.is_cpu else sent_numbers([value])[0]
    except Exception:
        return None  # a meta or fake tensor, or one with several elements


def as_they_are(values: list[Any]) -> list[Any]:
    """The same of the values of one update: those on a device are sent together."""
    devices = {v.device for v in values if getattr(v, "is_cpu", True) is False}
    if len(devices) != 1:
        return list(map(as_it_is, values))
    if next(iter(devices)).type == "cuda" and torch.cuda.is_current_stream_capturing():
        return [as_it_is(v) if getattr(v, "is_cpu", True) else None for v in values]
    there = [i for i, v in enumerate(values) if getattr(v, "is_cpu", True) is False]
    try:
        sent = dict(zip(there, sent_numbers([values[i] for i in there]), strict=True))
    except Exception:  # one of them has several elements
        return list(map(as_it_is, values))
    return [sent[i] if i in sent else as_it_is(v) for i, v in enumerate(values)]


def _resolve(row: UpdateRow) -> None:
    """Read what is still on its way from a device. Waits for it; runs in the background thread only."""
    for name in ("loss", "scale", "clip_norm", "grad_norm"):
        value = getattr(row, name)
        if isinstance(value, Number):
            try:
                setattr(row, name, float(value))
            except Exception:
                setattr(row, name, None)
    row.skipped = bool(row.skipped)
    if not isinstance(row.seconds, dict):  # marks on a device
        row.seconds = row.seconds.read()
    if row.sample is not None:
        row.sample.resolve()
    if row.fingerprint is not None:
        row.fingerprint = [number for pair in row.fingerprint.values() for number in pair]
