"""One project as an editor sees it: what is open, saved or not, among the files on disk around it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fallline.check.discovery import below, excluded, shown
from fallline.check.fixing import Fixer
from fallline.check.settings import Settings, load
from fallline.check.sift import Sift, collect, for_people
from fallline.check.sources import Sources
from fallline.finding import Finding
from fallline.matters import matters
from fallline.syntax.edits import split_lines
from fallline.syntax.source import UnreadableError, decode
from fallline.verdict.project import called_names, read_paths
from fallline.verdict.reading import Reading

__all__ = ["Change", "Project", "Target", "as_bytes"]

# Above this many files that can hold a mistake, only what is open is read: an editor wants its answer now.
MOST_FILES = 300
LOOKED_AT = (
    10_000  # files of a folder; one with more is not a project that a check at each key can read
)

State = tuple[int, int] | int | None  # what tells one content of a file from another
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b(?:[^\n(]|\([^)]*\))*", re.MULTILINE)
_DEFINED = re.compile(rb"\b(?:def|class)\s+(\w+)")


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
        self._contents: dict[str, _Content] = {}

    def opened(self, documents: Mapping[str, bytes]) -> list[Finding] | None:
        """What is wrong in the open documents, at once; None where that depends on files that call them. Raises FalllineError."""
        settings, given = load([self.folder]), _given(documents)
        files = _files(self.folder, settings, given, whole=False)
        known = {path: r for path, r in self._readings.items() if self._is_current(path, given)}
        fresh = read_paths(
            [path for path in files if path not in known],
            roots=[settings.root],
            among=list({**dict.fromkeys(files), **self._readings}),
            given=given,
        )
        if any(self._reached_from_elsewhere(reading) for reading in fresh):
            return None
        readings = [*fresh, *(known[path] for path in files if path in known)]
        return self._told(readings, settings, given)

    def findings(self, documents: Mapping[str, bytes]) -> list[Finding]:
        """What is wrong in the open documents and in the project's other files. Raises FalllineError."""
        settings, given = load([self.folder]), _given(documents)
        self._read(settings, given)
        return self._told(self._readings.values(), settings, given)

    def _told(
        self, readings: Iterable[Reading], settings: Settings, given: dict[str, bytes]
    ) -> list[Finding]:
        found = list(readings)
        sources = Sources(given)
        sift = Sift(settings, [reading.path for reading in found], settings.baseline)
        return for_people(sift.remaining(collect(found), sources), sources)

    def fixed(
        self, documents: Mapping[str, bytes], target: Target | None, unsafe: bool
    ) -> list[Change]:
        """What changes when one finding is fixed, or with no target all in the documents. Empty where no fix holds."""
        settings, given = load([self.folder]), _given(documents)
        self._read(settings, given)
        sift = Sift(settings, self._readings, settings.baseline)
        readings = list(self._readings.values())
        chosen = self._chosen(sift.settled(collect(readings)), given, target)
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
            sift.settled,
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
        self, findings: Iterable[Finding], given: dict[str, bytes], target: Target | None
    ) -> Callable[[Finding, Sources], bool]:
        """Everything but the findings that are there now and not meant; what a fix uncovers is fixed with it."""
        if target is None:
            return lambda finding, sources: True
        now = Sources(given)
        others = set()
        for finding in findings:
            told = for_people([finding], now)[0]
            if Target.of(told) != target:
                others.add(now.identity(finding))
        return lambda finding, sources: sources.identity(finding) not in others

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, settings: Settings, given: dict[str, bytes]) -> None:
        files = _files(self.folder, settings, given, whole=True)
        touched = {path for reading in self._readings.values() for path in reading.touched}
        before = self._contents
        contents = {path: _content(path, given, before.get(path)) for path in {*files, *touched}}
        changes = [
            _Changed(path, before.get(path), contents.get(path), path in self._readings)
            for path in {*before, *contents}
            if before.get(path) != contents.get(path)
        ]
        stale = [path for path in files if self._concerned(path, contents[path], changes, given)]
        readings = read_paths(stale, roots=[settings.root], among=files, given=given)
        fresh = {reading.path: reading for reading in readings}
        self._readings = {path: fresh.get(path) or self._readings[path] for path in files}
        for path in {path for reading in readings for path in reading.touched} - contents.keys():
            contents[path] = _content(path, given, None)
        self._contents = contents

    def _concerned(
        self, path: str, content: _Content, changes: list[_Changed], given: dict[str, bytes]
    ) -> bool:
        """Whether a file has to be read again: it changed, it imports what changed, or is called otherwise than before."""
        reading = self._readings.get(path)
        if reading is None:
            return True
        for change in changes:
            if change.path == path or content.defines & change.calls:
                return True
            if change.path in reading.touched or not change.known:
                # who calls is noted as touched too; that only counts where `calls` differ
                if any(change.name in line for line in _imports(path, given)):
                    return True
        return False

    def _is_current(self, path: str, given: dict[str, bytes]) -> bool:
        """Whether this file and all that had a part in its reading are what they were."""
        parts = (path, *self._readings[path].touched)
        return all(
            part in self._contents and self._contents[part].state == _state(part, given)
            for part in parts
        )

    def _reached_from_elsewhere(self, reading: Reading) -> bool:
        """Another file calls functions of this one: only both together say what happens in them."""
        names = {(reading.path, name) for name in reading.deferred}
        return any(names & r.reached for path, r in self._readings.items() if path != reading.path)


@dataclass(frozen=True)
class _Content:
    """What a file holds, as far as others depend on it."""

    state: State
    calls: frozenset[bytes] = frozenset()
    defines: frozenset[bytes] = frozenset()


class _Changed:
    """A file that is not what it was; `calls` are the names that it calls now and did not, or did and does not."""

    def __init__(
        self, path: str, before: _Content | None, after: _Content | None, known: bool
    ) -> None:
        self.path = path
        self.known = known and after is not None and after.state is not None
        old, new = (content.calls if content else frozenset() for content in (before, after))
        self.calls = old ^ new
        stem = os.path.splitext(os.path.basename(path))[0]
        package = os.path.basename(os.path.dirname(os.path.abspath(path)))
        self.name = os.fsencode(package if stem == "__init__" else stem)


def _imports(path: str, given: dict[str, bytes]) -> list[set[bytes]]:
    """The words of each import in a file."""
    found = _IMPORT.findall(Sources(given).data(path))
    return [set(re.findall(rb"\w+", statement)) for statement in found]


def _content(path: str, given: dict[str, bytes], before: _Content | None) -> _Content:
    state = _state(path, given)
    if before is not None and before.state == state:
        return before
    try:
        data = Sources(given).data(path)
    except OSError:
        return _Content(None)
    return _Content(state, called_names(data), frozenset(_DEFINED.findall(data)))


def as_bytes(text: str) -> bytes:
    """An editor's text as the bytes its file would have, by the encoding that it declares."""
    data = text.encode("utf-8", errors="replace")
    try:
        return text.encode(decode(data)[1])
    except (UnreadableError, UnicodeError):
        return data


def _given(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    return {shown(path): data for path, data in documents.items()}


def _files(folder: str, settings: Settings, given: dict[str, bytes], whole: bool) -> list[str]:
    """The open documents first; then, if there are not too many, the files around them that can matter."""
    opened = [path for path in given if not excluded(path, settings)]
    if not whole:
        return opened
    others: list[str] = []
    for looked_at, path in enumerate(below(folder, settings)):
        if len(others) > MOST_FILES or looked_at > LOOKED_AT:
            return opened
        if path not in given and _can_matter(path):
            others.append(path)
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


def _changes(path: str, before: bytes, after: bytes) -> list[Change]:
    full = os.path.abspath(path)
    if not path.endswith(".ipynb"):
        return [Change(full, None, decode(before)[0], decode(after)[0])]
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
