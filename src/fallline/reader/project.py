"""Many files as one project: in parallel, and each function read where it is called.

A function that other files call is left to them first (they know its arguments); what nobody reached is then begun
on its own.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b

from fallline.reader.read import SECONDS_PER_FILE, Reading, read_data, read_deferred, unreadable
from fallline.reader.relevance import TOKENS
from fallline.rule import Rule, all_rules, rule_by_code
from fallline.syntax import Project, UnreadableError
from fallline.verdict import merge, settle

__all__ = ["called_names", "read_paths"]

# From a word's first letter and never back into it: a picture in a notebook is one word of a megabyte.
_CALLED = re.compile(rb"(?<![\w.])(def |class )?([\w.]++)\(")
_IMPORTED = re.compile(rb"^[ \t]*(?:from .*?)?import[ \t]*(?:\(([^)]*)\)|(.*))$", re.M)
# `model.train()` in a file says nothing of a function `train` in another one; `engine.train()` does, where engine is imported.
_METHODS = frozenset({b"train", b"eval", b"step", b"update", b"forward", b"backward"})
_WORD = re.compile(rb"[A-Za-z_]\w*")


def read_paths(
    paths: Sequence[str],
    *,
    rules: Iterable[Rule] | None = None,
    roots: Sequence[str] = (),
    jobs: int = 1,
    on_file: Callable[[Reading], None] | None = None,
    among: Sequence[str] = (),
    given: Mapping[str, bytes] | None = None,
) -> list[Reading]:
    """The readings of these files as one project, in the order given.

    `among` are all files of the project, if more; `given` is what files hold that are not on disk so, read in this process.
    """
    chosen = tuple(rules) if rules is not None else all_rules()
    project = Project(roots or [os.getcwd()], given)
    callers = _callers(among or paths, project)
    jobs = min(jobs, max(1, len(paths) // 4))
    if jobs <= 1 or given:
        worker = _Worker(project, chosen, callers)
        readings = []
        with _no_collection():
            for path in paths:
                readings.append(worker.read(path))
                if on_file is not None:
                    on_file(readings[-1])
            return _finish(readings, worker.deferred)
    codes = tuple(rule.code for rule in chosen)
    with ProcessPoolExecutor(
        jobs, initializer=_start, initargs=(tuple(roots), codes, callers)
    ) as pool:
        readings = []
        size = max(1, min(16, len(paths) // (jobs * 4)))
        for reading in pool.map(_read, paths, chunksize=size):
            readings.append(reading)
            if on_file is not None:
                on_file(reading)
        return _finish(readings, lambda *task: pool.submit(_deferred, *task).result())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Trees are large and freed by hand (`Project.trim`); walking them over and over for garbage doubles the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _callers(paths: Sequence[str], project: Project) -> dict[bytes, tuple[str, ...]]:
    """Name → files that call or import something of that name, among files that can train."""
    found: dict[bytes, set[str]] = {}
    for path in paths:
        try:
            data = project.data(path)
        except OSError:
            continue
        for word in called_names(data):
            found.setdefault(word, set()).add(path)
    return {name: tuple(sorted(files)) for name, files in found.items()}


_MOST_KNOWN = 4096
_known: dict[bytes, frozenset[bytes]] = {}  # by content: an editor asks again with every keystroke


def called_names(data: bytes) -> frozenset[bytes]:
    """What a file calls or imports by name; nothing where it cannot train."""
    if not any(token in data for token in TOKENS):
        return frozenset()
    key = blake2b(data, digest_size=16).digest()
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = frozenset(_called_names(data))
    return _known[key]


def _called_names(data: bytes) -> set[bytes]:
    words: set[bytes] = set()
    for several, one in _IMPORTED.findall(data):
        words.update(_WORD.findall(several or one))
    called = set()
    for defined, dotted in set(_CALLED.findall(data)):
        of, dot, name = dotted.rpartition(b".")
        if not defined and (name not in _METHODS or not dot or of.rpartition(b".")[2] in words):
            called.add(name)
    return words | called


def _finish(
    readings: list[Reading], run: Callable[[str, tuple[str, ...], set[tuple[str, str]]], Reading]
) -> list[Reading]:
    """Begin what was left to other files and not reached by any."""
    reached: set[tuple[str, str]] = set()
    for reading in readings:
        reached |= reading.reached
    finished = []
    for reading in readings:
        left = tuple(
            sorted(n for n in reading.deferred if not _was_reached(reading.path, n, reached))
        )
        if left:
            rest = run(reading.path, left, {r for r in reached if r[0] == reading.path})
            reading = replace(
                reading,
                findings=settle(merge([*reading.findings, *rest.findings]), one_trace=False),
                touched=reading.touched | rest.touched,
                failures=(*reading.failures, *rest.failures),
            )
        finished.append(reading)
    return finished


def _was_reached(path: str, name: str, reached: set[tuple[str, str]]) -> bool:
    return (path, name) in reached or (path, f"{name}.training_step") in reached


class _Worker:
    """Reads files of one project in one process."""

    def __init__(
        self, project: Project, rules: tuple[Rule, ...], callers: dict[bytes, tuple[str, ...]]
    ) -> None:
        self.project = project
        self.rules = rules
        self.callers = callers

    def read(self, path: str) -> Reading:
        others: set[str] = set()

        def defers(name: str) -> bool:
            files = [f for f in self.callers.get(name.encode(), ()) if f != path]
            others.update(files)
            return bool(files)

        try:
            reading = read_data(
                path, self.project.data(path), self.project, self.rules, defers=defers
            )
        except OSError as error:
            return Reading(
                path,
                [unreadable(path, UnreadableError(f"cannot be read: {error.strerror or error}"))],
            )
        return replace(reading, touched=reading.touched | others) if others else reading

    def deferred(self, path: str, names: tuple[str, ...], reached: set[tuple[str, str]]) -> Reading:
        module = self.project.module_at(path)
        if module is None:
            return Reading(path, [])
        return read_deferred(
            module, self.rules, time.thread_time() + SECONDS_PER_FILE, names, reached
        )


_worker: _Worker | None = None


def _start(
    roots: tuple[str, ...], codes: tuple[str, ...], callers: dict[bytes, tuple[str, ...]]
) -> None:
    global _worker
    gc.disable()  # see _no_collection
    rules = tuple(rule for code in codes if (rule := rule_by_code(code)) is not None)
    _worker = _Worker(Project(roots or [os.getcwd()]), rules, callers)


def _read(path: str) -> Reading:
    assert _worker is not None
    return _worker.read(path)


def _deferred(path: str, names: tuple[str, ...], reached: set[tuple[str, str]]) -> Reading:
    assert _worker is not None
    return _worker.deferred(path, names, reached)
