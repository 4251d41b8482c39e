"""SARIF 2.1.0, as code scanning wants it: relative addresses, fingerprints that survive moved lines, fixes."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from urllib.parse import quote

from fallline._version import __version__
from fallline.check.baseline import fingerprint
from fallline.check.outcome import Outcome
from fallline.check.sources import Sources
from fallline.finding import Edit, Finding
from fallline.report.json import plain
from fallline.report.rule_page import page
from fallline.rule import Rule
from fallline.rules import all_rules
from fallline.show.terminal import Paint
from fallline.untrusted import json_text

__all__ = ["render"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEM = {"error": "error", "warning": "warning", "info": "recommendation"}
_LONGEST = 1024  # what GitHub accepts in a description


def render(outcome: Outcome, paint: Paint, *, explain: bool = False) -> str:
    """One log with one run."""
    rules = all_rules()
    numbers = {rule.code: number for number, rule in enumerate(rules)}
    run = {
        "tool": {
            "driver": {
                "name": "fallline",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "automationDetails": {"id": "fallline/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"uri": f"file://{_quoted(os.getcwd())}/"}},
        "invocations": [{"executionSuccessful": True}],
        "results": _results(outcome, numbers),
    }
    return json_text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": _cut(rule.what.strip().split("\n")[0])},
        "fullDescription": {"text": _cut(rule.why.strip())},
        "help": {"text": f"{rule.instead.strip()}\n", "markdown": page(rule)},
        "defaultConfiguration": {"level": _LEVEL[rule.severity.value]},
        "properties": {
            "tags": ["pytorch", rule.specialist.name],
            "precision": "high",
            "problem.severity": _PROBLEM[rule.severity.value],
        },
    }


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _results(outcome: Outcome, numbers: dict[str, int]) -> list[dict[str, Any]]:
    sources = outcome.sources or Sources()
    seen: Counter[str] = Counter()
    results = []
    for finding in outcome.findings:
        function, line = fingerprint(finding, sources)
        seen[print_ := f"{finding.code}{function}{line}{finding.at.path}"] += 1
        results.append(
            {
                "ruleId": finding.code,
                "ruleIndex": numbers[finding.code],
                "level": _LEVEL[finding.severity.value],
                "message": {"text": _message(finding)},
                "locations": [_location(finding, function)],
                "partialFingerprints": {"primaryLocationLineHash": f"{line}:{seen[print_]}"},
                **_fixes(finding),
                "properties": {"evidence": plain(finding.evidence)},
            }
        )
    return results


def _message(finding: Finding) -> str:
    cell = finding.evidence.get("cell")
    # viewers know lines of the file, not of a cell: say it in words
    return (
        finding.message
        if cell is None
        else f"cell {cell}, line {finding.at.line}: {finding.message}"
    )


def _location(finding: Finding, function: str) -> dict[str, Any]:
    at = finding.at
    if "cell" in finding.evidence:
        region = {"startLine": 1}
    else:
        end_line, end_column = at.end_line or at.line, at.end_column or at.column
        region = {
            "startLine": at.line,
            "startColumn": at.column,
            "endLine": end_line,
            "endColumn": end_column,
        }
    place: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(at.path), "region": region}
    }
    if function:
        place["logicalLocations"] = [{"fullyQualifiedName": function, "kind": "function"}]
    return place


def _artifact(path: str) -> dict[str, str]:
    address = _quoted(path)
    return (
        {"uri": f"file://{address}"}
        if os.path.isabs(path)
        else {"uri": address, "uriBaseId": "%SRCROOT%"}
    )


def _quoted(path: str) -> str:
    return quote(os.fsencode(path.replace(os.sep, "/")))


def _fixes(finding: Finding) -> dict[str, Any]:
    if finding.fix is None or "cell" in finding.evidence:
        return {}
    by_path: dict[str, list[Edit]] = {}
    for edit in finding.fix.edits:
        by_path.setdefault(edit.path or finding.at.path, []).append(edit)
    changes = [
        {
            "artifactLocation": _artifact(path),
            "replacements": [_replacement(edit) for edit in edits],
        }
        for path, edits in by_path.items()
    ]
    return {"fixes": [{"description": {"text": finding.fix.title}, "artifactChanges": changes}]}


def _replacement(edit: Edit) -> dict[str, Any]:
    region = {
        "startLine": edit.line,
        "startColumn": edit.column,
        "endLine": edit.end_line,
        "endColumn": edit.end_column,
    }
    return {"deletedRegion": region, "insertedContent": {"text": edit.content}}
