"""One file to its findings: the syntax rules, the traces, the event rules, the fixes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fallline.event import Location
from fallline.finding import Finding, Severity
from fallline.matters import nothing_to_find
from fallline.reader.execute import traces_of
from fallline.rule import Rule, all_rules
from fallline.syntax import Module, Project, Source, UnreadableError
from fallline.verdict import judge, merge, settle

__all__ = ["Reading", "read_data", "read_paths", "read_text"]

SECONDS_PER_FILE = 10.0


@dataclass
class Reading:
    """What was read in one file. `touched` are the other files that had a part in it."""

    path: str
    findings: list[Finding]
    touched: frozenset[str] = field(default=frozenset())
    seconds: float = 0.0


def read_text(text: str | bytes, path: str = "<text>", rules: Iterable[Rule] | None = None) -> list[Finding]:
    """The findings of one file given as text."""
    data = text.encode() if isinstance(text, str) else text
    return read_data(path, data, Project(), tuple(rules) if rules is not None else all_rules()).findings


def read_data(path: str, data: bytes, project: Project, rules: Sequence[Rule], seconds: float = SECONDS_PER_FILE) -> Reading:
    """The findings of one file of a project."""
    started = time.perf_counter()
    if nothing_to_find(path, data):
        return Reading(path, [])
    try:
        module = project.add(Source.from_bytes(path, data))
    except UnreadableError as error:
        return Reading(path, [unreadable(path, error)])
    findings = read_module(module, rules, started + seconds)
    return Reading(path, findings, frozenset(), time.perf_counter() - started)


def read_module(module: Module, rules: Sequence[Rule], deadline: float) -> list[Finding]:
    """The findings of one parsed file, with fixes."""
    raw = module.source.text.encode()
    found: list[Finding] = []
    for rule in rules:
        if rule._defines("check_syntax") and (not rule.tokens or any(t in raw for t in rule.tokens)):
            found += rule.check_syntax(module)
    for trace in traces_of(module, deadline):
        found += judge(trace, rules)
    found = settle(merge(found))
    by_code = {rule.code: rule for rule in rules}
    for finding in found:
        if finding.fix is None and finding.at.path == module.path and by_code[finding.code].fixable:
            finding.fix = by_code[finding.code].fix(finding, module)
    return found


def unreadable(path: str, error: UnreadableError) -> Finding:
    """FL000: the file cannot be read or parsed."""
    return Finding("FL000", "unreadable", Severity.ERROR, error.message, Location(path, error.line, error.column))


def read_paths(
    paths: Sequence[str],
    *,
    rules: Iterable[Rule] | None = None,
    roots: Sequence[str] = (),
    jobs: int = 1,
    on_file: Callable[[Reading], None] | None = None,
) -> list[Reading]:
    """The readings of these files as one project, in the order given."""
    chosen = tuple(rules) if rules is not None else all_rules()
    project = Project(roots or [os.getcwd()])
    readings = []
    for path in paths:
        try:
            reading = read_data(path, Path(path).read_bytes(), project, chosen)
        except OSError as error:
            reading = Reading(path, [unreadable(path, UnreadableError(f"cannot be read: {error.strerror or error}"))])
        readings.append(reading)
        if on_file is not None:
            on_file(reading)
    return readings
