"""One check from paths to what is told about them."""

from __future__ import annotations

import os
import sys

from fallline.check.discovery import discover
from fallline.check.reading import read_files
from fallline.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fallline.check.discovery import Problem
    from fallline.check.fixing import Fixer
    from fallline.check.settings import Settings
    from fallline.check.sources import Sources
    from fallline.finding import Finding
    from fallline.verdict.reading import Reading

__all__ = ["Outcome", "check"]


class Outcome:
    """What a check found. `findings` are as people see them; `sources` has the text behind them."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.findings: list[Finding] = []
        self.failures: list[str] = []  # what went wrong in fallline itself
        self.sources: Sources | None = None
        self.fixer: Fixer | None = None
        self.baseline_size: int | None = None
        self.show_notes = True  # in the formats for people

    @property
    def shown(self) -> list[Finding]:
        """The findings that a person is shown: notes only where they were asked for, else they are counted."""
        return [f for f in self.findings if self.show_notes or f.severity.value != "info"]

    @property
    def failed(self) -> bool:
        """Something was found that counts: info alone does not."""
        return any(finding.severity.value != "info" for finding in self.findings)


def check(
    paths: Sequence[str],
    settings: Settings,
    *,
    force_exclude: bool = False,
    stdin_filename: str | None = None,
    jobs: int = 0,
    cache_dir: str | None = None,
    baseline: str | None = None,
    write_baseline: str | None = None,
    fix: bool = False,
    unsafe_fixes: bool = False,
    on_start: Callable[[int], Callable[[], None]] = lambda total: lambda: None,
) -> Outcome:
    """Read the paths and say what is wrong in them. Nothing is written except the cache and the baseline."""
    given: dict[str, bytes] = {}
    problems: list[Problem]
    if "-" in paths:
        files, problems, readings = _standard_input(paths, settings, stdin_filename, given)
    else:
        files, problems = discover(paths, settings, force_exclude)
        readings = read_files(
            files,
            root=settings.root,
            # a cache can come with the project: what is written into files is read from them, now
            cache_dir=None if fix else cache_dir,
            jobs=jobs or _processors(),
            problems=problems,
            on_file=on_start(len(files)),
        )
    outcome = Outcome(len(files))
    outcome.failures = [failure for reading in readings for failure in reading.failures]
    if not readings and not problems and write_baseline is None:
        return outcome
    # imported here: a check that finds nothing to do shall start quickly
    from fallline.check.sift import Sift, collect, for_people
    from fallline.check.sources import Sources

    sift = Sift(settings, files, baseline)
    outcome.sources = Sources(given)
    if fix:
        # imported here: a check that finds nothing to do shall start quickly
        from fallline.check.fixing import Fixer

        outcome.fixer = Fixer(
            readings, sift.unknown, settings.root, given, unsafe_fixes, sift.settled
        )
        outcome.fixer.run()
        readings = list(outcome.fixer.state.readings.values())
        outcome.sources = Sources({**given, **outcome.fixer.state.changed})
    findings = sift.remaining(collect(readings, problems), outcome.sources)
    if write_baseline is not None:
        # imported here: a check that finds nothing to do shall start quickly
        from fallline.check.baseline import write

        outcome.baseline_size = write(write_baseline, findings, outcome.sources)
        return outcome
    outcome.findings = for_people(findings, outcome.sources)
    return outcome


def _standard_input(
    paths: Sequence[str], settings: Settings, name: str | None, given: dict[str, bytes]
) -> tuple[list[str], list[Problem], list[Reading]]:
    if len(paths) > 1:
        raise UsageError("`-` (standard input) cannot be checked together with other paths")
    # imported here: a check that finds nothing to do shall start quickly
    from fallline.verdict.project import read_paths

    path = name or "<stdin>"
    given[path] = sys.stdin.buffer.read()
    return [path], [], read_paths([path], roots=[settings.root], given=given)


def _processors() -> int:
    """The processors this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
