"""One SQLite file per rank: how a run lies on disk, bounded however long it runs.

Write-ahead logging makes the file readable while it is written and after `kill -9`. When a table grows past its
limit, its older half is thinned: of each few neighbours those stay that hold the smallest and largest loss and
gradient norm, so no spike is lost. Exact counts (updates, skips, clips) are kept beside it.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import time
import uuid
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fallline.files import temporary_name
from fallline.finding import Finding
from fallline.location import Location
from fallline.runs.prints import Print
from fallline.runs.samples import Sample
from fallline.runs.update import UpdateRow

__all__ = [
    "BUCKET",
    "LATER",
    "MARK",
    "UPDATE_COLUMNS",
    "Store",
    "claim_folder",
    "files_by_rank",
    "free_folder",
    "rank_files",
    "unwritable",
]

MARK = "run.json"  # in every run folder: which run it belongs to
FORMAT = 1

MAX_UPDATES = 60_000
MAX_SAMPLE_BYTES = 64 << 20
MAX_FINDINGS = 1_000
MAX_PRINTS = 10_000
BUCKET = 8  # neighbours that are thinned together; at most four of them stay

UPDATE_COLUMNS = (
    "idx", "optimizer", "at", "loss_at", "time", "loss", "lr", "scale", "skipped", "clip_norm", "clip_threshold",
    "grad_norm", "data", "forward", "backward", "step", "memory", "graphs", "micro_batches", "all_reduces",
    "other", "clip_at", "batch_at",
)  # fmt: skip
LATER = frozenset(
    {"other", "clip_at", "batch_at"}
)  # a run of an earlier version does not have these

_SCHEMA = f"""
create table meta(key text primary key, value text);
create table places(id integer primary key, path text, line integer, function text);
create table updates({", ".join(UPDATE_COLUMNS)});
create table layouts(optimizer, id, parameters text);
create table samples(optimizer, idx, layout, norm, signal, vals blob);
create table fingerprints(optimizer, idx, vals blob);
create table prints(kind, name, idx, number, vals blob);
create table findings(code, path, line, body text, primary key(code, path, line));
"""

_INSERT_UPDATE = f"insert into updates values({','.join('?' * len(UPDATE_COLUMNS))})"


def rank_files(folder: Path) -> dict[int, Path]:
    """The files of a run folder by rank."""
    return files_by_rank(folder, "sqlite")


def files_by_rank(folder: Path, ending: str) -> dict[int, Path]:
    """Those that are called `rank0.ENDING`, and so on."""
    found: dict[int, Path] = {}
    for path in folder.glob(f"rank*.{ending}"):
        number = re.fullmatch(r"rank([0-9]{1,6})", path.stem)
        if number is not None:
            found[int(number[1])] = path
    return dict(sorted(found.items()))


def claim_folder(wanted: Path, rank: int, world: int) -> Path:
    """`wanted`, or the first free one beside it when it already holds another run.

    The ranks of one run come here one by one and must agree without talking to each other: the first to
    arrive leaves a mark, and the others recognise their own launch in it.
    """
    launch = _launch(world)
    for number in range(1, 10_000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        if _marked(folder, launch) and _taken(folder, rank):
            return folder
    raise OSError(f"no free folder beside {wanted}")


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written to this folder; None where it can. Leaves nothing behind."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    probe = folder / ".fallline"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for made in missing:
            with suppress(OSError):
                made.rmdir()
    return None


def free_folder(wanted: Path) -> Path:
    """`wanted`, or the first beside it that holds no run."""
    folder, number = wanted, 1
    while (folder / MARK).exists() or rank_files(folder):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _launch(world: int) -> str:
    """The same for all ranks of one launch, different for another launch."""
    names = (
        "TORCHELASTIC_RUN_ID",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID",
    )
    parts = [os.environ.get(name, "") for name in names]
    if world <= 1:
        return uuid.uuid4().hex
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
        parts.append(str(os.getppid()))  # one machine: the launcher itself tells launches apart
    return "-".join([*parts, str(world)])


def _marked(folder: Path, launch: str) -> bool:
    """Whether the folder's mark is of this launch; leaves the mark where there is none."""
    mark = folder / MARK
    # files first: another rank of this launch may leave its mark and then its file while we look
    if rank_files(folder) and not mark.exists():
        return False
    fresh = folder / temporary_name()
    fresh.write_text(json.dumps({"format": FORMAT, "launch": launch, "created": time.time()}))
    try:
        os.link(fresh, mark)  # atomic and with its content: another rank never reads half a mark
        return True
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not mark.exists():
            fresh.replace(mark)
            return True
    finally:
        fresh.unlink(missing_ok=True)
    try:
        return bool(json.loads(mark.read_text()).get("launch") == launch)
    except ValueError:
        return False


def _taken(folder: Path, rank: int) -> bool:
    try:
        os.close(os.open(folder / f"rank{rank}.sqlite", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
    except FileExistsError:
        return False
    return True


_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "ceph",
    "fuse.",
    "9p",
    "afs",
)


def on_network(folder: Path, mounts: str = "/proc/self/mounts") -> bool:
    """Whether the folder lies on a file system of another machine, as far as this system says."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            known = [line.split() for line in file]
    except OSError:
        return False
    here = str(folder.absolute())
    around = [
        (len(point), kind)
        for _, point, kind, *_ in (m for m in known if len(m) > 2)
        if here == point or here.startswith(point.rstrip("/") + "/")
    ]
    return bool(around) and max(around)[1].startswith(_NETWORK)


class Store:
    """The open file of one rank. One thread uses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._places: dict[tuple[str, int, str], int] = {}
        self._layouts: set[tuple[str, int]] = set()
        self._totals: dict[str, dict[str, Any]] = {}
        self._updates = self._findings = self._prints = self._sample_bytes = 0

    @classmethod
    def create(cls, folder: Path, rank: int) -> Store:
        db = sqlite3.connect(folder / f"rank{rank}.sqlite", isolation_level=None)
        # write-ahead logging needs shared memory, which a network file system does not have
        db.execute(f"pragma journal_mode={'truncate' if on_network(folder) else 'wal'}")
        db.execute("pragma synchronous=off")  # the kernel keeps what a killed process has written
        db.execute("pragma cache_size=-2000")
        db.executescript(_SCHEMA)
        db.execute("begin")
        return cls(db)

    def meta(self, key: str, value: Any) -> None:
        self._db.execute(
            "insert or replace into meta values(?, ?)", (key, json.dumps(value, default=str))
        )

    def updates(self, rows: list[UpdateRow]) -> None:
        self._db.executemany(_INSERT_UPDATE, map(self._columns, rows))
        for row in rows:
            self._count(row)
            if row.sample is not None:
                self._sample(row.optimizer, row.index, row.sample)
            if row.fingerprint is not None:
                self._db.execute(
                    "insert into fingerprints values(?, ?, ?)",
                    (row.optimizer, row.index, array("d", row.fingerprint).tobytes()),
                )
        self._updates += len(rows)
        if self._updates > MAX_UPDATES:
            self._updates -= self._thin(
                "updates", self._updates // 2, "loss", "coalesce(clip_norm, grad_norm)"
            )

    def _columns(self, row: UpdateRow) -> tuple[Any, ...]:
        seconds = row.seconds.get
        return (
            row.index, row.optimizer, self._place(row.at), self._place(row.loss_at), row.time, _encode(row.loss),
            _encode(row.lr), row.scale, int(row.skipped), _encode(row.clip_norm), row.clip_threshold,
            _encode(row.grad_norm), seconds("data"), seconds("forward"), seconds("backward"), seconds("step"),
            row.memory, row.graphs, row.micro_batches, row.all_reduces,
            seconds("other"), self._place(row.clip_at), self._place(row.batch_at),
        )  # fmt: skip

    def print(self, found: Print) -> None:
        if self._prints < MAX_PRINTS:
            row = (found.kind, found.name, found.index, found.number, found.values.tobytes())
            self._db.execute("insert into prints values(?, ?, ?, ?, ?)", row)
            self._prints += 1

    def finding(self, finding: Finding) -> None:
        if self._findings < MAX_FINDINGS:
            self._db.execute(
                "insert or replace into findings values(?, ?, ?, ?)",
                (*finding.key, json.dumps(finding.as_dict(), default=_plain)),
            )
            self._findings += 1

    def commit(self) -> None:
        """What was written so far survives the process."""
        for optimizer, totals in self._totals.items():
            self.meta(f"totals:{optimizer}", totals)
        self._db.execute("commit")
        self._db.execute("begin")

    def close(self) -> None:
        self.commit()
        self._db.execute("commit")
        with suppress(sqlite3.OperationalError):  # locked: somebody reads it, and nothing is lost
            self._db.execute("pragma journal_mode=delete")  # a finished run is one plain file
        self._db.close()

    def _count(self, row: UpdateRow) -> None:
        totals = self._totals.setdefault(
            row.optimizer, {"updates": 0, "skipped": 0, "clips": 0, "clipped": 0, "seconds": {}}
        )
        # updates at rest have no row
        totals["updates"] = max(totals["updates"], row.index) + 1
        totals["skipped"] += row.skipped
        # the norm of an update that was not applied is not finite: it says nothing about clipping
        if not row.skipped and row.clip_norm is not None and row.clip_threshold is not None:
            totals["clips"] += 1
            totals["clipped"] += row.clip_norm > row.clip_threshold
        for name, value in row.seconds.items():
            totals["seconds"][name] = totals["seconds"].get(name, 0.0) + value

    def _place(self, at: Location | None) -> int | None:
        if at is None:
            return None
        key = (at.path, at.line, at.function)
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = len(self._places) + 1
            self._db.execute("insert into places values(?, ?, ?, ?)", (known, *key))
        return known

    def _sample(self, optimizer: str, index: int, sample: Sample) -> None:
        if (optimizer, sample.layout.id) not in self._layouts:
            self._layouts.add((optimizer, sample.layout.id))
            described = json.dumps([asdict(p) for p in sample.layout.parameters])
            self._db.execute(
                "insert into layouts values(?, ?, ?)", (optimizer, sample.layout.id, described)
            )
        values = sample.values.tobytes()
        self._db.execute(
            "insert into samples values(?, ?, ?, ?, ?, ?)",
            (
                optimizer,
                index,
                sample.layout.id,
                _encode(sample.total_norm()),
                _encode(sample.signal),
                values,
            ),
        )
        self._sample_bytes += len(values)
        if self._sample_bytes > MAX_SAMPLE_BYTES:
            (count,) = self._db.execute("select count(*) from samples").fetchone()
            self._thin("samples", max(count // 2, min(count, 2 * BUCKET)), "norm", "norm")
            (self._sample_bytes,) = self._db.execute(
                "select coalesce(sum(length(vals)), 0) from samples"
            ).fetchone()

    def _thin(self, table: str, oldest: int, *measures: str) -> int:
        """Thin the `oldest` rows of a table; how many went."""
        rows = self._db.execute(
            f"select rowid, optimizer, {', '.join(measures)} from {table} order by rowid limit ?",
            (oldest,),
        ).fetchall()
        gone: list[tuple[int]] = []
        for bucket in _buckets(rows):
            stay = set()
            for measure in range(2, 2 + len(measures)):
                by_size = sorted(bucket, key=lambda row: _size(row[measure]))
                stay |= {by_size[0][0], by_size[-1][0]}
            gone += [(row[0],) for row in bucket if row[0] not in stay]
        self._db.executemany(f"delete from {table} where rowid = ?", gone)
        return len(gone)


def _buckets(rows: list[Any]) -> Iterator[list[Any]]:
    """Neighbours of one optimizer, BUCKET at a time."""
    by_optimizer: dict[Any, list[Any]] = {}
    for row in rows:
        by_optimizer.setdefault(row[1], []).append(row)
    for mine in by_optimizer.values():
        for start in range(0, len(mine), BUCKET):
            yield mine[start : start + BUCKET]


def _size(value: Any) -> float:
    """Missing is smallest, non-finite is largest: both ends of what happened stay."""
    if value is None:
        return -math.inf
    number = float(value)
    return number if math.isfinite(number) else math.inf


def _encode(value: Any) -> Any:
    """SQLite would store NaN as NULL, which here means "not measured"."""
    return "nan" if value != value else value


def _location(at: Location) -> list[Any]:
    return [at.path, at.line, at.column, at.function]


def _plain(value: Any) -> Any:
    if isinstance(value, Location):
        return _location(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)
