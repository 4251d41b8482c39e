"""One project as an editor sees it: what is open, saved or not, among the files on disk around it."""

from __future__ import annotations

import io
import json
import os
import tokenize
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fallline.check.discovery import discover, excluded, shown
from fallline.check.fixing import Fixer
from fallline.check.settings import Settings, load
from fallline.check.sift import Sift, collect, for_people
from fallline.check.sources import Sources
from fallline.finding import Finding
from fallline.matters import matters
from fallline.reader import Reading, read_paths
from fallline.syntax.edits import split_lines

__all__ = ["Change", "Project", "Target", "as_bytes"]

# Above this many files that can hold a mistake, only what is open is read: an editor wants its answer now.
MOST_FILES = 300

State = tuple[int, int] | int | None  # what tells one content of a file from another


@dataclass(frozen=True)
class Target:
    """A finding as an editor can name it again: code, absolute path, line, and the cell that the line counts in."""

    code: str
    path: str
    line: int
    cell: int | None = None

    @classmethod
    def of(cls, finding: Finding) -> Target:
        at = finding.at
        return cls(finding.code, os.path.abspath(at.path), at.line, finding.evidence.get("cell"))


@dataclass(frozen=True)
class Change:
    """A file, or a notebook's cell, before and after."""

    path: str
    cell: int | None
    before: str
    after: str


class Project:
    """Remembers its readings: a keystroke costs the reading of what that file has a part in."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._readings: dict[str, Reading] = {}
        self._states: dict[str, State] = {}

    def findings(self, documents: Mapping[str, bytes], whole: bool) -> list[Finding]:
        """What is wrong in the open documents and, if `whole`, in the project's other files. Raises FalllineError."""
        settings, given = load([self.folder]), _given(documents)
        self._read(settings, given, whole)
        sources = Sources(given)
        sift = Sift(settings, self._readings, settings.baseline)
        return for_people(sift.remaining(collect(self._readings.values()), sources), sources)

    def fixed(
        self, documents: Mapping[str, bytes], target: Target | None, unsafe: bool
    ) -> list[Change]:
        """What changes when one finding is fixed, or with no target all in the documents. Empty where no fix holds."""
        settings, given = load([self.folder]), _given(documents)
        self._read(settings, given, whole=True)
        sift = Sift(settings, self._readings, settings.baseline)
        readings = list(self._readings.values())
        chosen = self._chosen(readings, given, target)
        fixer = Fixer(
            readings,
            lambda finding, sources: (
                chosen(finding, sources)
                and sift.unknown(finding, sources)
                and (target is not None or finding.at.path in given)
            ),
            settings.root,
            given,
            unsafe,
        )
        fixer.run()
        return [
            change
            for path, (before, after) in fixer.changes().items()
            for change in _changes(path, before, after)
        ]

    def silenced(self, documents: Mapping[str, bytes], target: Target) -> list[Change]:
        """The statement with the comment that silences this finding."""
        given = _given(documents)
        text = Sources(given).text(shown(target.path))
        if text is None or text.source.cells:
            return []
        lines = split_lines(text.source.text)
        at = text.span(target.line).last - 1
        body = lines[at].rstrip("\r\n")
        line = f"{body}  # fallline: ignore[{target.code}]{lines[at][len(body) :]}"
        after = "".join([*lines[:at], line, *lines[at + 1 :]])
        return [Change(target.path, None, text.source.text, after)]

    def _chosen(
        self, readings: Iterable[Reading], given: dict[str, bytes], target: Target | None
    ) -> Callable[[Finding, Sources], bool]:
        """Everything but the findings that are there now and not meant; what a fix uncovers is fixed with it."""
        if target is None:
            return lambda finding, sources: True
        now = Sources(given)
        others = set()
        for finding in collect(readings):
            told = for_people([finding], now)[0]
            if Target.of(told) != target:
                others.add(_identity(finding, now))
        return lambda finding, sources: _identity(finding, sources) not in others

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, settings: Settings, given: dict[str, bytes], whole: bool) -> None:
        files = _files(self.folder, settings, given, whole)
        touched = {path for reading in self._readings.values() for path in reading.touched}
        states = {path: _state(path, given) for path in {*files, *touched}}
        changed = {
            os.path.abspath(path)
            for path, state in states.items()
            if path not in self._states or self._states[path] != state
        }
        # another set of files can give every import and every call another meaning
        stale = (
            [path for path in files if self._concerned(path, changed)]
            if files == list(self._readings)
            else files
        )
        readings = read_paths(stale, roots=[settings.root], among=files, given=given)
        fresh = {reading.path: reading for reading in readings}
        self._readings = {path: fresh.get(path) or self._readings[path] for path in files}
        new = {path for reading in readings for path in reading.touched} - states.keys()
        self._states = states | {path: _state(path, given) for path in new}

    def _concerned(self, path: str, changed: set[str]) -> bool:
        parts = (path, *self._readings[path].touched)
        return any(os.path.abspath(part) in changed for part in parts)


def as_bytes(text: str) -> bytes:
    """An editor's text as the bytes its file would have, by the encoding that it declares."""
    data = text.encode("utf-8", errors="replace")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return text.encode(encoding)
    except (SyntaxError, LookupError, UnicodeEncodeError):
        return data


def _given(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    return {shown(path): data for path, data in documents.items()}


def _files(folder: str, settings: Settings, given: dict[str, bytes], whole: bool) -> list[str]:
    """The open documents first; then, if there are not too many, the files around them that can matter."""
    opened = [path for path in given if not excluded(path, settings)]
    if not whole:
        return opened
    found, _ = discover([folder], settings)
    others = [path for path in found if path not in given and _can_matter(path)]
    return opened if len(others) > MOST_FILES else [*opened, *others]


def _can_matter(path: str) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as handle:
            return matters(handle.read())
    except OSError:
        return False


def _state(path: str, given: dict[str, bytes]) -> State:
    if path in given:
        return hash(given[path])
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size)


def _identity(finding: Finding, sources: Sources) -> tuple[str, str, str, str]:
    """A finding before and after lines have moved."""
    text = sources.text(finding.at.path)
    line = text.line(finding.at.line) if text is not None else ""
    return (finding.at.path, finding.at.function, line, finding.code)


def _changes(path: str, before: bytes, after: bytes) -> list[Change]:
    full = os.path.abspath(path)
    if not path.endswith(".ipynb"):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(before).readline)
        return [Change(full, None, before.decode(encoding), after.decode(encoding))]
    pairs = zip(_cells(before), _cells(after), strict=True)
    return [
        Change(full, number, old, new) for number, (old, new) in enumerate(pairs, 1) if old != new
    ]


def _cells(data: bytes) -> list[str]:
    cells = json.loads(data.decode("utf-8-sig"))["cells"]
    return [
        cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        for cell in cells
    ]
