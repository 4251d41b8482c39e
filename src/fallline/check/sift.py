"""Which findings are told: what the settings select, minus what a comment or the baseline silences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from fallline.check import baseline, notebook
from fallline.check.discovery import Problem, excluded
from fallline.check.settings import Settings
from fallline.check.sources import Sources
from fallline.check.suppress import silenced
from fallline.finding import Finding
from fallline.reader import Reading
from fallline.reader.read import unreadable
from fallline.syntax import UnreadableError

__all__ = ["Sift", "collect", "for_people"]


def collect(readings: Iterable[Reading], problems: Sequence[Problem] = ()) -> list[Finding]:
    """The findings of all readings, each once (two files can run into the same helper), in order of place."""
    found = {f.key: f for reading in readings for f in reading.findings}
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

    def wanted(self, finding: Finding, sources: Sources) -> bool:
        """Selected, not ignored for its file, and not silenced by a comment."""
        if not self.settings.selection.wants(finding.code, finding.name):
            return False
        path = finding.at.path
        if self.settings.ignored_in(path, finding.code, finding.name):
            return False
        if path not in self.files and os.path.exists(path) and excluded(path, self.settings):
            return False  # reached through an import, but the user has set it apart
        return not silenced(finding, sources.text(path))

    def unknown(self, finding: Finding, sources: Sources) -> bool:
        """Wanted, and not in the baseline: what a fix may touch."""
        return bool(self.remaining([finding], sources))

    def remaining(self, findings: Sequence[Finding], sources: Sources) -> list[Finding]:
        """The wanted findings that the baseline does not know."""
        wanted = [f for f in findings if self.wanted(f, sources)]
        if self.baseline_file is None:
            return wanted
        return baseline.without_known(wanted, self.baseline_file, sources)


def for_people(findings: Sequence[Finding], sources: Sources) -> list[Finding]:
    """Notebook findings in lines of their cell, the others as they are."""
    shown = []
    for finding in findings:
        text = sources.text(finding.at.path) if finding.at.path.endswith(".ipynb") else None
        shown.append(finding if text is None else notebook.localise(finding, text.source))
    return shown
