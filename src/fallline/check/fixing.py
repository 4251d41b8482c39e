"""Fixes, made in memory and read again: one that does not remove its finding, or adds another, is withdrawn."""

from __future__ import annotations

import difflib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fallline.check import notebook
from fallline.check.sources import Identity, Sources
from fallline.files import write_atomically
from fallline.finding import Edit, Finding
from fallline.settle import settle
from fallline.syntax import Source, UnreadableError
from fallline.syntax.edits import apply, split_lines
from fallline.syntax.source import decode
from fallline.verdict.project import read_paths
from fallline.verdict.reading import Reading

__all__ = ["Fixer"]

# One fix can uncover what the next one fixes (a clip moved before the step may still need its unscale_).
_CHAIN = 3
_ROUNDS = 10  # fixes that only became possible through others

Settled = Callable[[Iterable[Finding]], list[Finding]]


@dataclass
class State:
    """The files as changed so far, and what is found in them."""

    changed: dict[str, bytes]
    readings: dict[str, Reading]
    sources: Sources
    settled: Settled

    def findings(self) -> dict[tuple[str, str, int], Finding]:
        """What is reported, and what would be if everything were selected: a fix must add nothing to either."""
        found = [f for reading in self.readings.values() for f in reading.found]
        return {f.key: f for f in (*settle(found), *self.settled(found))}

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((path, code) for code, path, _ in self.findings())


@dataclass
class Fixer:
    """Makes fixes one file at a time, and takes back those that do not hold."""

    readings: Sequence[Reading]
    wanted: Callable[[Finding, Sources], bool]
    root: str
    given: dict[str, bytes] = field(default_factory=dict)  # what is not on disk: standard input
    unsafe: bool = False
    settled: Settled = settle  # those that are reported, of all that was found
    made: list[Finding] = field(default_factory=list)
    withdrawn: list[Finding] = field(default_factory=list)

    def run(self) -> None:
        """Make every fix that holds. Nothing is written yet."""
        self.state = State(
            {},
            {reading.path: reading for reading in self.readings},
            Sources(self.given),
            self.settled,
        )
        self._originals: dict[str, bytes] = {}
        self._refused: set[Identity] = set()
        for _ in range(_ROUNDS):
            left = {
                self.state.sources.identity(finding) for finding in self._fixable(self.state)
            } - self._refused
            if not left:
                return
            self._make(sorted(left))

    def _make(self, chosen: Sequence[Identity]) -> None:
        """Make these together, which is the common case; where that does not hold, one half after the other."""
        findings = [
            f for f in self._fixable(self.state) if self.state.sources.identity(f) in chosen
        ]
        if not findings:
            return
        after = self._attempt(self.state, findings)
        if after is not None:
            self.state = after
            self.made += findings
        elif len(chosen) == 1:
            self._refused.update(chosen)
            self.withdrawn += findings
        else:
            middle = len(chosen) // 2
            self._make(chosen[:middle])
            self._make(chosen[middle:])

    def _fixable(self, state: State) -> list[Finding]:
        return [f for f in state.findings().values() if self._may_fix(f, state.sources)]

    def _may_fix(self, finding: Finding, sources: Sources) -> bool:
        """Only files that were given to the check are ever changed."""
        fix = finding.fix
        if fix is None or not (fix.safe or self.unsafe):
            return False
        paths = {edit.path or finding.at.path for edit in fix.edits}
        return paths <= self.state.readings.keys() and self.wanted(finding, sources)

    def _attempt(self, before: State, findings: Sequence[Finding]) -> State | None:
        """The state after these fixes and those they call for; None where that is not strictly better."""
        goal = before.counts()
        goal.subtract(Counter((f.at.path, f.code) for f in findings))
        after: State | None = before
        for _ in range(_CHAIN):
            after = self._with_edits(after, findings) if after is not None else None
            if after is None:
                return None
            surplus = {key for key, count in after.counts().items() if count > max(goal[key], 0)}
            if not surplus:
                return after
            findings = [f for f in after.findings().values() if (f.at.path, f.code) in surplus]
            if not all(self._may_fix(f, after.sources) for f in findings):
                return None
        return None

    def _with_edits(self, state: State, findings: Sequence[Finding]) -> State | None:
        """The state with these fixes made and every file they concern read again."""
        by_path: dict[str, dict[Edit, None]] = defaultdict(dict)
        for finding in findings:
            for edit in finding.fix.edits if finding.fix is not None else ():
                by_path[edit.path or finding.at.path][edit] = None
        changed = dict(state.changed)
        for path, edits in by_path.items():
            try:
                before = state.sources.data(path)
                data = _edited(before, path, list(edits))
            except (OSError, UnreadableError, UnicodeEncodeError):
                return None
            if data is None:
                return None
            self._originals.setdefault(path, before)
            changed[path] = data
        readings = self._read_again(state.readings, changed, by_path)
        return State(changed, readings, Sources({**self.given, **changed}), self.settled)

    def _read_again(
        self, readings: dict[str, Reading], changed: dict[str, bytes], paths: Iterable[str]
    ) -> dict[str, Reading]:
        """Every reading that one of these files had a part in, made again with the changed contents."""
        fresh = {os.path.abspath(path) for path in paths}
        stale = [
            path
            for path, reading in readings.items()
            if not fresh.isdisjoint(os.path.abspath(p) for p in (path, *reading.touched))
        ]
        given = {**self.given, **changed}
        again = read_paths(stale, roots=[self.root], among=list(readings), given=given)
        return readings | {reading.path: reading for reading in again}

    # -- the result ----------------------------------------------------------------------------------------------

    def changes(self) -> dict[str, tuple[bytes, bytes]]:
        """Before and after, for each file that changed."""
        pairs = {
            path: (self._originals[path], data) for path, data in sorted(self.state.changed.items())
        }
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}

    def diff(self) -> str:
        """All changes as one unified diff."""
        pieces: list[str] = []
        for path, (before, after) in self.changes().items():
            old, new = (split_lines(_decoded(data, path)[0]) for data in (before, after))
            shown = path.replace(os.sep, "/")
            for line in difflib.unified_diff(old, new, shown, shown):
                pieces += (
                    [line] if line.endswith("\n") else [line, "\n\\ No newline at end of file\n"]
                )
        return "".join(pieces)

    def write(self) -> list[str]:
        """Write every change; the files that could not be written, with the reason."""
        failures = []
        for path, (before, after) in self.changes().items():
            try:
                if Sources().data(path) == before:
                    write_atomically(path, after)
                else:
                    failures.append(
                        f"{path} was changed by someone else meanwhile; it is left as it is"
                    )
            except OSError as error:
                failures.append(f"{path} cannot be written: {error.strerror or error}")
        return failures


def _edited(data: bytes, path: str, edits: Sequence[Edit]) -> bytes | None:
    """The file's bytes with the edits made: same encoding, same byte-order mark, same line ends."""
    try:
        if path.endswith(".ipynb"):
            return notebook.edited(data, Source.from_bytes(path, data), edits)
        text, encoding = decode(data)
        if "\r\n" in text:
            edits = [_with_crlf(edit) for edit in edits]
        after = apply(text, edits)
        return None if after is None else after.encode(encoding)
    except UnicodeError:
        return None  # the file's encoding has no bytes for what the fix writes


def _with_crlf(edit: Edit) -> Edit:
    content = edit.content.replace("\r\n", "\n").replace("\n", "\r\n")
    return Edit(edit.line, edit.column, edit.end_line, edit.end_column, content, edit.path)


def _decoded(data: bytes, path: str) -> tuple[str, str]:
    if path.endswith(".ipynb"):
        return data.decode("utf-8-sig"), "utf-8"
    return decode(data)
