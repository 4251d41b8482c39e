"""Which findings are reported: what the settings select, minus what a comment or the baseline silences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fallline.check import baseline, notebook
from fallline.check.borrowed import Borrowed
from fallline.check.copies import once
from fallline.check.discovery import Problem, excluded
from fallline.check.on_purpose import noted_if_meant
from fallline.check.settings import Settings
from fallline.check.sources import Sources
from fallline.check.suppress import silenced
from fallline.finding import Finding
from fallline.settle import settle, yields_of_both
from fallline.syntax import UnreadableError
from fallline.verdict.reading import Reading, unreadable

__all__ = ["Sift", "collect", "for_people"]


def collect(readings: Iterable[Reading], problems: Sequence[Problem] = ()) -> list[Finding]:
    """All that was found, each once (two files can run into the same helper), in order of place."""
    found: dict[tuple[str, str, int], Finding] = {}
    for finding in (f for reading in readings for f in reading.found):
        known = found.get(finding.key, finding)
        worst = min(finding, known, key=lambda f: f.severity.rank)
        found[finding.key] = replace(worst, yields=yields_of_both(known, finding))
    for path, message in problems:
        finding = unreadable(path, UnreadableError(message))
        found[finding.key] = finding
    return sorted(found.values(), key=lambda f: (f.at.path, f.at.line, f.at.column, f.code))


class Sift:
    """Decides finding by finding."""

    def __init__(
        self, settings: Settings, files: Iterable[str], baseline_file: str | None = None
    ) -> None:
        self.settings = settings
        self.files = frozenset(files)
        self.baseline_file = baseline_file

    def selected(self, finding: Finding) -> bool:
        """Selected, and not ignored for its file."""
        if not self.settings.selection.wants(finding.code, finding.name):
            return False
        path = finding.at.path
        if self.settings.ignored_in(path, finding.code, finding.name):
            return False
        # reached through an import, but the user has set it apart
        return path in self.files or not os.path.exists(path) or not excluded(path, self.settings)

    def settled(self, findings: Iterable[Finding]) -> list[Finding]:
        """The selected findings, without those that yield to another selected one."""
        return settle(f for f in findings if self.selected(f))

    def unknown(self, finding: Finding, sources: Sources) -> bool:
        """Selected, not silenced by a comment, and not in the baseline: what a fix may touch."""
        return self.selected(finding) and bool(self._loud([finding], sources))

    def remaining(self, findings: Iterable[Finding], sources: Sources) -> list[Finding]:
        """The settled findings that no comment silences and the baseline does not know."""
        borrowed = Borrowed(self.settings.root, self.files)
        loud = self._loud(self.settled(findings), sources)
        return once([noted_if_meant(borrowed.noted(f), sources) for f in loud], sources)

    def _loud(self, findings: Sequence[Finding], sources: Sources) -> list[Finding]:
        loud = [f for f in findings if not silenced(f, sources.text(f.at.path))]
        if self.baseline_file is None:
            return loud
        return baseline.without_known(loud, self.baseline_file, sources)


def for_people(findings: Sequence[Finding], sources: Sources) -> list[Finding]:
    """Notebook findings in lines of their cell, the others as they are."""
    shown = []
    for finding in findings:
        text = sources.text(finding.at.path) if finding.at.path.endswith(".ipynb") else None
        shown.append(finding if text is None else notebook.localise(finding, text.source))
    return shown
