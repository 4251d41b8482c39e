"""The same lines with the same mistake in several places: one cause. It is reported in one place, which names the others; there it is a note."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from fallline.check.sources import Sources
from fallline.finding import Finding, Severity

__all__ = ["once"]

_AROUND = 4  # lines before and after that have to be the same, blank ones not counted
_NAMED = 3  # files that the message lists
_NEAR = 12  # lines
_NUMBER = re.compile(r"\d+")

Lines = tuple[str, ...]


def once(findings: Sequence[Finding], sources: Sources) -> list[Finding]:
    """The findings, with those in copies of a file or function, and in further lines like one before, as notes."""
    told = _once_in_functions(findings, sources)
    for same in (_lines, _function):
        told = _once_in_files(told, sources, same)
    return told


def _once_in_functions(findings: Sequence[Finding], sources: Sources) -> list[Finding]:
    """`a1 = log(p1)`, `a2 = log(p2)`: lines of one function that differ in their numbers alone."""
    told: list[Finding] = []
    seen: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        text = sources.text(finding.at.path)
        if finding.severity is Severity.INFO or text is None:
            told.append(finding)
            continue
        line = _NUMBER.sub("#", text.line(finding.at.line).strip())
        key = (finding.code, finding.at.path, finding.at.function or "", line)
        first = seen.setdefault(key, finding)
        if first is not finding and finding.at.line - first.at.line <= _NEAR and "#" in line:
            message = f"{finding.message} Line {first.at.line} does the same."
            finding = replace(finding, severity=Severity.INFO, message=message)
        told.append(finding)
    return told


def _once_in_files(
    findings: Sequence[Finding], sources: Sources, same: Callable[[Finding, Sources], Lines]
) -> list[Finding]:
    groups: dict[tuple[str, ...], list[int]] = {}
    files: dict[tuple[str, str], set[str]] = {}
    alike = [(f.code, _line(f, sources)) for f in findings]
    for finding, own in zip(findings, alike, strict=True):
        if finding.severity is not Severity.INFO:
            files.setdefault(own, set()).add(finding.at.path)
    for index, (finding, own) in enumerate(zip(findings, alike, strict=True)):
        graver = finding.severity is not Severity.INFO and len(files[own]) > 1
        lines = same(finding, sources) if graver else ()
        if len(lines) > _AROUND:  # a line or two alone can be alike by chance
            groups.setdefault((finding.code, *lines), []).append(index)
    told = list(findings)
    for group in groups.values():
        first = min(group, key=lambda i: _outermost(findings[i].at.path))
        path = findings[first].at.path
        others = sorted({findings[i].at.path for i in group} - {path}, key=_outermost)
        if others:
            message = f"{told[first].message} {_also(others)}"
            told[first] = replace(told[first], message=message)
        for index in group:
            if findings[index].at.path != path:
                message = (
                    f"{told[index].message} {path}:{findings[first].at.line} has the same lines."
                )
                told[index] = replace(told[index], severity=Severity.INFO, message=message)
    return told


def _line(finding: Finding, sources: Sources) -> str:
    text = sources.text(finding.at.path)
    return text.line(finding.at.line).strip() if text is not None else ""


def _lines(finding: Finding, sources: Sources) -> Lines:
    """The line of a finding between its neighbours; nothing where it cannot be read."""
    text = sources.text(finding.at.path)
    if text is None:
        return ()
    every, at = text.source.lines, finding.at.line - 1
    before = [line.strip() for line in every[max(0, at - 3 * _AROUND) : at] if line.strip()]
    after = [line.strip() for line in every[at : at + 3 * _AROUND] if line.strip()]
    return (*before[-_AROUND:], "here:", *after[: _AROUND + 1])


def _function(finding: Finding, sources: Sources) -> Lines:
    """The function around a finding and the place in it; nothing outside of functions.

    Copies of a class differ in the methods between which a function stands.
    """
    text = sources.text(finding.at.path)
    around = text.function_around(finding.at.line) if text is not None else None
    if text is None or around is None:
        return ()
    lines = [text.line(n).strip() for n in around]
    return (f"{finding.at.line - around.start}:", *(line for line in lines if line))


def _outermost(path: str) -> tuple[int, str]:
    return path.count(os.sep), path


def _also(paths: list[str]) -> str:
    named = ", ".join(paths[:_NAMED])
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"The same lines are in {named}{more}."
