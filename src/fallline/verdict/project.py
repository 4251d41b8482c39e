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
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain

from fallline.reader.relevance import TOKENS
from fallline.rule import Rule
from fallline.rules import reader_rules, rule_by_code
from fallline.syntax import Project, UnreadableError
from fallline.verdict import together
from fallline.verdict.apart import apart
from fallline.verdict.reading import (
    SECONDS_PER_FILE,
    Reading,
    Rest,
    read_data,
    read_deferred,
    unreadable,
)

__all__ = ["called_names", "read_paths"]

# From a word's first letter and never back into it: a picture in a notebook is one word of a megabyte.
_CALLED = re.compile(rb"(?<![\w.])(def |class )?([\w.]++)\(")
_IMPORTED = re.compile(rb"^[ \t]*(?:from .*?)?import[ \t]*(?:\(([^)]{0,10000})\)|(.*))$", re.M)
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
    known: Mapping[str, Reading] | None = None,
    unchanged: bool = False,
) -> list[Reading]:
    """The readings of these files as one project, in the order given.

    `among` are all files of the project, if more; `given` is what files hold that are not on disk so, read in this process.
    `known` are earlier readings of some of `paths`, before `_finish`: used again unless other files call them otherwise now,
    which is not asked where `unchanged` says that they are all of `paths` and no file is other than it was.
    """
    project = Project(roots or [os.getcwd()], given)
    callers = _callers(among or paths, project) if not unchanged else {}
    worker = _Worker(project, rules, callers)
    readings = {
        path: reading
        for path, reading in (known or {}).items()
        if unchanged or worker.calls(path, reading.called)
    }
    left = [path for path in paths if path not in readings]

    def gathered(fresh: Iterable[Reading]) -> list[Reading]:
        for reading in chain(list(readings.values()), fresh):
            readings[reading.path] = reading
            if on_file is not None:
                on_file(reading)
        return [readings[path] for path in paths]

    jobs = min(jobs, max(1, len(left) // 4))
    if jobs <= 1 or given:
        with _no_collection():
            return _finish(gathered(map(worker.read, left)), worker.deferred)
    from concurrent.futures import ProcessPoolExecutor  # for start-up: most checks read a few files

    codes = tuple(rule.code for rule in worker.rules)
    given_to_each = (tuple(roots), codes, callers)
    with apart(), ProcessPoolExecutor(jobs, None, _start, given_to_each) as pool:
        size = max(1, min(16, len(left) // (jobs * 4)))
        fresh = pool.map(_read, left, chunksize=size)
        return _finish(gathered(fresh), lambda *task: pool.submit(_deferred, *task).result())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Trees are large and freed by hand (`Project.trim`); walking them over and over for garbage doubles the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            # to the old ones, unseen: the first collection afterwards would look at every node of every tree
            gc.freeze()
            gc.unfreeze()
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


class _Remembered:
    """What files call, by their content: an editor asks again with every keystroke."""

    most = 4096

    def __init__(self) -> None:
        self._known: dict[bytes, frozenset[bytes]] = {}

    def names(self, data: bytes) -> frozenset[bytes]:
        key = blake2b(data, digest_size=16).digest()
        if key not in self._known:
            if len(self._known) >= self.most:
                self._known.clear()
            self._known[key] = frozenset(_called_names(data))
        return self._known[key]


_REMEMBERED = _Remembered()


def called_names(data: bytes) -> frozenset[bytes]:
    """What a file calls or imports by name; nothing where it cannot train."""
    if not any(map(data.__contains__, TOKENS)):
        return frozenset()
    return _REMEMBERED.names(data)


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
    readings: list[Reading], run: Callable[[str, tuple[str, ...], frozenset[str]], Reading]
) -> list[Reading]:
    """Begin what was left to other files and not reached by any."""
    reached: dict[str, set[str]] = {}
    for reading in readings:
        for path, name in reading.reached:
            reached.setdefault(path, set()).add(name)
    return [_finished(r, frozenset(reached.get(r.path, ())), run) for r in readings]


def _finished(
    reading: Reading,
    reached: frozenset[str],
    run: Callable[[str, tuple[str, ...], frozenset[str]], Reading],
) -> Reading:
    left = tuple(sorted(n for n in reading.deferred if not _was_reached(n, reached)))
    if not left:
        return replace(reading, first=reading.found, rest=None)
    rest = reading.rest
    if rest is None or rest.names != left or rest.reached != reached:
        rest = Rest(left, reached, run(reading.path, left, reached))
    # merging counts in place, and these are kept as they are
    both = deepcopy([*reading.found, *rest.reading.found])
    return replace(
        reading,
        found=together(both, one_trace=False),
        touched=reading.touched | rest.reading.touched,
        failures=(*reading.failures, *rest.reading.failures),
        first=reading.found,
        rest=rest,
    )


def _was_reached(name: str, reached: frozenset[str]) -> bool:
    return name in reached or f"{name}.training_step" in reached


class _Worker:
    """Reads files of one project in one process."""

    def __init__(
        self,
        project: Project,
        rules: Iterable[Rule] | None,
        callers: dict[bytes, tuple[str, ...]],
    ) -> None:
        self.project = project
        self.callers = callers
        self._given_rules = rules

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Those given, else all, which are not even imported where there is nothing to read."""
        return tuple(self._given_rules) if self._given_rules is not None else reader_rules()

    def calls(self, path: str, before: Mapping[str, bool]) -> bool:
        """Whether other files call these names, or do not, as they did before."""
        return all(bool(self.others(path, name)) is called for name, called in before.items())

    def others(self, path: str, name: str) -> list[str]:
        """The files that may call something of this name in this one."""
        return [file for file in self.callers.get(name.encode(), ()) if file != path]

    def read(self, path: str) -> Reading:
        others: set[str] = set()
        called: dict[str, bool] = {}

        def defers(name: str) -> bool:
            files = self.others(path, name)
            others.update(files)
            called[name] = bool(files)
            return called[name]

        try:
            reading = read_data(
                path, self.project.data(path), self.project, self.rules, defers=defers
            )
        except OSError as error:
            return Reading(
                path,
                [unreadable(path, UnreadableError(f"cannot be read: {error.strerror or error}"))],
            )
        asked = self.project.take_asked()
        return replace(reading, touched=reading.touched | others, called=called, asked=asked)

    def deferred(self, path: str, names: tuple[str, ...], reached: frozenset[str]) -> Reading:
        module = self.project.module_at(path)
        if module is None:
            return Reading(path, [])
        ran = {(path, name) for name in reached}
        deadline = time.thread_time() + SECONDS_PER_FILE
        reading = read_deferred(module, self.rules, deadline, names, ran)
        return replace(reading, asked=self.project.take_asked())


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


def _deferred(path: str, names: tuple[str, ...], reached: frozenset[str]) -> Reading:
    assert _worker is not None
    return _worker.deferred(path, names, reached)
