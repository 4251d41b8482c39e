"""What was found in a file, kept for as long as nothing that had a part in it changes.

A reading rests on its file's text, and on what the file asked of the project: which file a name means from its folder.
What was found out about that file rests in turn on what it asked. So the cache keeps, for every file, its state and its
questions with their answers; a reading holds while nothing that these lead to has changed, and while other files call
its functions, or do not, as before (which `read_paths` knows). Files that only call a function are not part of it.
One JSON file for one set of files checked together; a new set begins with what the newest other one knows.
A cache that cannot be read or written costs time, never an answer: it is rebuilt, or done without.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from fallline._version import __version__
from fallline.check.cache_folder import CacheFolder
from fallline.finding import Finding
from fallline.location import Location
from fallline.syntax import Project
from fallline.syntax.project import Question
from fallline.verdict.reading import SECONDS_PER_FILE, Reading, Rest

__all__ = ["Cache"]

_ROOMS = frozenset(
    {"rules", "reader", "syntax", "flow", "api", "events"}
)  # what a reading rests on

Answers = dict[Question, tuple[str, ...]]


class Cache:
    """Readings by file. Processes may share one: each write is whole, and the last one wins."""

    def __init__(self, folder: str, root: str, among: Sequence[str]) -> None:
        """`among` are all the files of the check."""
        self.folder = CacheFolder(folder, root)
        self.among = among
        together = _hash(os.fsencode("\0".join(sorted(os.path.abspath(path) for path in among))))
        self.file = self.folder.file(together[:12])
        self._project = Project([root])
        self._states: dict[str, str | None] = {}
        # paths are told from the working directory, so that another one is another matter
        self._tool = f"{_tool_signature()}-{_hash(os.fsencode(os.getcwd()))}"
        own = self._open(self.file)
        if not own and (newest := self.folder.newest()) is not None:
            self._open(newest)
        # what is read of these files is what was read of them the last time
        self.unchanged = own and not self._changed and len(self._readings) == len(among)

    def _open(self, file: str) -> bool:
        """Whether this file holds readings. One that somebody else wrote, or changed, is none: its body can be anything."""
        self._files: dict[str, Answers] = {}
        self._readings: dict[str, Reading] = {}
        self._changed = False
        try:
            stored = self._stored(file)
            if stored is None:
                return False
            self._files, kept = self._holding(stored)
            self._changed = len(self._files) != len(stored["files"])
            self._readings = self._thawed(kept)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            self._files, self._readings = {}, {}
            return False
        return True

    def readings(self) -> dict[str, Reading]:
        """The readings of files of this check that rest on nothing that has changed."""
        return self._readings

    def _thawed(self, kept: dict[str, Any]) -> dict[str, Reading]:
        entries = {path: kept.get(os.path.abspath(path)) for path in self.among}
        return {
            path: _thaw_reading(entry)
            for path, entry in entries.items()
            if entry is not None and entry["path"] == path
        }

    def save(self, readings: Iterable[Reading]) -> None:
        """Write what the next check can use; silently not at all where the folder cannot be written."""
        files = {path: dict(answers) for path, answers in self._files.items()}
        entries: dict[str, Any] = {}
        for reading in readings:
            files.setdefault(os.path.abspath(reading.path), {})
            for part in (reading, *([reading.rest.reading] if reading.rest is not None else ())):
                for path, questions in part.asked.items():
                    answers = {question: self._project.answer(question) for question in questions}
                    files.setdefault(path, {}).update(answers)
                    for told in answers.values():
                        for other in told:
                            files.setdefault(other, {})
            if _worth_keeping(reading):
                entries[os.path.abspath(reading.path)] = _frozen_reading(reading)
        table = {
            path: [self._state(path), [[*question, *told] for question, told in answers.items()]]
            for path, answers in files.items()
        }
        try:
            body = json.dumps({"files": table, "readings": entries}, separators=(",", ":"))
            head = f"{self._tool} {_hash(body.encode())}"
            self.folder.write(self.file, f"{head}\n{body}".encode())
        except (OSError, TypeError, ValueError):
            return

    def _holding(self, stored: dict[str, Any]) -> tuple[dict[str, Answers], dict[str, Any]]:
        """Of what is stored, the files with nothing changed in what they lead to, and their readings."""
        files: dict[str, Answers] = {}
        changed: list[str] = []
        asked_by: dict[str, list[str]] = {}
        for path, (state, table) in stored.get("files", {}).items():
            files[path] = answers = {(name, folder): tuple(told) for name, folder, *told in table}
            if state != self._state(path) or any(
                self._project.answer(question) != told for question, told in answers.items()
            ):
                changed.append(path)
            for told in answers.values():
                for other in told:
                    asked_by.setdefault(other, []).append(path)
        while changed:
            path = changed.pop()
            if files.pop(path, None) is not None:
                changed += asked_by.get(path, ())
        readings = stored.get("readings", {})
        return files, {path: entry for path, entry in readings.items() if path in files}

    def _stored(self, file: str) -> dict[str, Any] | None:
        data = self.folder.read(file)
        if data is None:
            return None
        head, _, body = data.partition(b"\n")
        if head.decode() != f"{self._tool} {_hash(body)}":
            return None
        stored: dict[str, Any] = json.loads(body)
        return stored

    def _state(self, path: str) -> str | None:
        """A file's content, and the name it has as a module; None where it cannot be read."""
        if path not in self._states:
            try:
                with open(path, "rb") as handle:
                    digest = _hash(handle.read())
                self._states[path] = f"{digest}-{self._project.name_of(path)}"
            except OSError:
                self._states[path] = None
        return self._states[path]


def _worth_keeping(reading: Reading) -> bool:
    """Not where it was cut short by the clock, or by a mistake of our own."""
    rest = reading.rest.reading.seconds if reading.rest is not None else 0.0
    return not reading.failures and max(reading.seconds, rest) < SECONDS_PER_FILE / 2


def _frozen_reading(reading: Reading) -> dict[str, Any]:
    reached: dict[str, list[str]] = {}
    for path, name in sorted(reading.reached):
        reached.setdefault(path, []).append(name)
    rest = reading.rest
    return {
        "path": reading.path,
        "findings": [_frozen(f) for f in reading.first],
        "touched": sorted(reading.touched),
        "reached": reached,
        "deferred": sorted(reading.deferred),
        "called": reading.called,
        "rest": None
        if rest is None
        else {
            "names": list(rest.names),
            "reached": sorted(rest.reached),
            "touched": sorted(rest.reading.touched),
            "findings": [_frozen(f) for f in rest.reading.found],
        },
    }


def _thaw_reading(entry: dict[str, Any]) -> Reading:
    path, rest = entry["path"], entry["rest"]
    return Reading(
        path,
        [_thaw(f) for f in entry["findings"]],
        frozenset(entry["touched"]),
        reached=frozenset(
            (home, name) for home, names in entry["reached"].items() for name in names
        ),
        deferred=frozenset(entry["deferred"]),
        called=entry["called"],
        rest=None
        if rest is None
        else Rest(
            tuple(rest["names"]),
            frozenset(rest["reached"]),
            Reading(path, [_thaw(f) for f in rest["findings"]], frozenset(rest["touched"])),
        ),
    )


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _frozen(finding: Finding) -> dict[str, Any]:
    related = {name: asdict(at) for name, at in finding.related.items()}
    return {
        **finding.as_dict(),
        "function": finding.at.function,
        "related": related,
        "yields": [sorted(others) for others in finding.yields],
    }


def _thaw(data: dict[str, Any]) -> Finding:
    finding = Finding.from_dict(data)
    finding.at = replace(finding.at, function=data["function"])
    finding.related = {name: Location(**at) for name, at in data["related"].items()}
    finding.yields = tuple(frozenset(map(tuple, others)) for others in data["yields"])
    return finding


def _tool_signature() -> str:
    """Which fallline on which Python: its version, and the state of its own files for those who change it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = []
    for folder, folders, names in os.walk(home):
        folders[:] = [f for f in folders if f in _ROOMS] if folder == home else folders
        files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    states = [
        (os.path.relpath(f, home), os.stat(f).st_mtime_ns, os.stat(f).st_size)
        for f in sorted(files)
    ]
    return f"fallline-{__version__}-{_hash(repr((states, sys.version_info[:3])).encode())}"
