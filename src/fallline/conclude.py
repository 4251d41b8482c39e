"""What a run folder says in the end: the findings of all ranks, from events and from numbers. Needs no torch."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fallline.errors import RunError, UsageError
from fallline.finding import Finding
from fallline.rule import Rule
from fallline.rules import series_rules
from fallline.runs.excerpt import project_of
from fallline.runs.findings import write_findings
from fallline.runs.rank import read_ranks
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.settle import settle
from fallline.verdict import together

__all__ = ["conclude", "findings_of", "measured"]

WAIT_FOR_RANKS = 10.0  # seconds in which no rank writes anything
LONGEST_WAIT = 60.0
ATTEMPTS = 8  # of an elastic launch, whose findings are read


def conclude(folder: Path, *, wait: bool = False) -> tuple[Series, list[Finding]]:
    """Judge the run in this folder and write findings.json; the run and its findings.

    `wait`: for ranks that have not ended yet.
    """
    series = _all_ranks(folder) if wait else read_run(folder)
    found = findings_of(series)
    write_findings(folder, found)
    return series, found


def findings_of(
    series: Series, thresholds: dict[str, dict[str, float]] | None = None
) -> list[Finding]:
    """What was found while the run went on, and what its numbers show. The thresholds are the project's, unless given."""
    recorded = [f for rank in series.ranks for f in rank.findings]
    recorded += [
        Finding.from_dict(d) for rank in series.ranks for d in rank.meta.get("judged") or ()
    ]
    found = settle(together([*recorded, *measured(series, thresholds)], one_trace=True))
    return [*found, *_found_before(series, found, thresholds)] if series.attempts else found


def _found_before(
    series: Series, found: list[Finding], thresholds: dict[str, dict[str, float]] | None
) -> Iterator[Finding]:
    """By earlier attempts of an elastic launch, with the number of the attempt; what the last one shows, too, is not said again."""
    known = {f.key for f in found}
    for attempt in series.attempts[-ATTEMPTS:]:
        try:
            before = read_run(attempt.folder)
        except (RunError, OSError):
            continue  # its files are gone
        before.attempts = []
        for finding in findings_of(before, thresholds):
            if finding.key not in known:
                known.add(finding.key)
                evidence = {**finding.evidence, "attempt": attempt.number + 1}
                message = f"{finding.message} (attempt {attempt.number + 1} of {len(series.attempts) + 1})"
                yield dataclasses.replace(finding, message=message, evidence=evidence)


def measured(
    series: Series, thresholds: dict[str, dict[str, float]] | None = None
) -> Iterator[Finding]:
    """The findings of the numeric rules."""
    chosen = _thresholds(series) if thresholds is None else thresholds
    observed = {e["code"] for rank in series.ranks for e in rank.meta.get("observed") or ()}
    for rule in series_rules(observed):
        if rule._defines("check_series"):
            try:
                yield from list(_tuned(rule, chosen.get(rule.code, {})).check_series(series))
            except Exception as error:  # a rule that fails must not take the others with it
                print(f"fallline: rule {rule.code} failed ({error!r})", file=sys.stderr)


def _thresholds(series: Series) -> dict[str, dict[str, float]]:
    """`thresholds` in [tool.fallline] of the project that the run was started in; none when they make no sense."""
    from fallline.check.settings import load

    try:
        return load([str(project_of(series) or ".")]).thresholds
    except UsageError as error:
        print(f"fallline: {error}", file=sys.stderr)
        return {}


def _tuned(rule: Rule, thresholds: dict[str, float]) -> Rule:
    """The rule with the user's own thresholds."""
    tuned = copy.copy(rule)
    for name, value in thresholds.items():
        if isinstance(getattr(rule, name, None), int | float):
            setattr(tuned, name, value)
        else:
            print(f"fallline: {rule.code} has no threshold '{name}'", file=sys.stderr)
    return tuned


def _all_ranks(folder: Path) -> Series:
    """The run once every rank has ended, or without those that write nothing any more.

    A file that cannot be read is one that is being made, until the waiting is over.
    """
    begun = still = time.monotonic()
    written = None
    while True:
        if (now := _written(folder)) != written:
            written, still = now, time.monotonic()
        waited = time.monotonic()
        over = waited > still + WAIT_FOR_RANKS or waited > begun + LONGEST_WAIT
        try:
            if over or _all_ended(folder):
                return read_run(folder)
        except RunError:
            if over:
                raise
        time.sleep(0.1)


def _all_ended(folder: Path) -> bool:
    """By what each rank says of itself in short; by the whole run where some rank has not said that."""
    states = read_ranks([folder])
    if states and len(states) >= max(s.world for s in states.values()):
        return all(s.ended for s in states.values())
    series = read_run(folder)
    return sum(1 for r in series.ranks if "ended" in r.meta) >= series.world


def _written(folder: Path) -> list[tuple[str, int, int]]:
    """How the files of the ranks lie there now; another answer later means that a rank still writes."""
    found = []
    for path in sorted(folder.glob("rank*.sqlite*")):
        with contextlib.suppress(OSError):  # a journal goes away when its rank ends
            seen = path.stat()
            found.append((path.name, seen.st_size, seen.st_mtime_ns))
    return found
