"""What a rule reports: one mistake at one place, with its evidence and, where certain, its fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fallline.location import Location
from fallline.specialists import specialist_of

__all__ = ["Edit", "Finding", "Fix", "Severity", "Yields"]


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return ("error", "warning", "info").index(self.value)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text from (line, column) to (end_line, end_column) by `content`.

    Lines and columns count from 1, columns in characters; the end is exclusive.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    content: str
    path: str | None = None  # None: the file of the finding

    def as_dict(self) -> dict[str, Any]:
        found = {
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "content": self.content,
        }
        return found if self.path is None else {**found, "path": self.path}


@dataclass(frozen=True, slots=True)
class Fix:
    """Text edits that remove the mistake. `safe` when they cannot change what was meant."""

    title: str
    edits: tuple[Edit, ...]
    safe: bool = True

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "safe": self.safe, "edits": [e.as_dict() for e in self.edits]}


Yields = tuple[frozenset[tuple[str, str]], ...]


@dataclass(slots=True)
class Finding:
    """One mistake at one place."""

    code: str
    name: str
    severity: Severity
    message: str
    at: Location
    fix: Fix | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    related: dict[str, Location] = field(
        default_factory=dict
    )  # e.g. {"step": ...}: what a fix needs
    # For each execution that shows it, the findings of that execution (code, path) that it yields to; none: it stands.
    yields: Yields = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """Two findings with the same key are one finding."""
        return (self.code, self.at.path, self.at.line)

    def as_dict(self) -> dict[str, Any]:
        """The object of the JSON contract."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.value,
            "message": self.message,
            "path": self.at.path,
            "line": self.at.line,
            "column": self.at.column,
            "end_line": self.at.end_line or self.at.line,
            "end_column": self.at.end_column or self.at.column,
            "specialist": specialist_of(self.code).name,
            "fix": None if self.fix is None else self.fix.as_dict(),
            "evidence": self.evidence,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """The finding that `as_dict` wrote. A ValueError or KeyError where somebody else wrote it: every field is looked at."""
        code, evidence = _text(data, "code"), _evidence(data.get("evidence", {}))
        specialist_of(code)  # there is a room for it
        return cls(
            code=code,
            name=_text(data, "name"),
            severity=Severity(data["severity"]),
            message=_text(data, "message"),
            at=Location(
                _text(data, "path"),
                _number(data, "line"),
                _number(data, "column"),
                _number(data, "end_line"),
                _number(data, "end_column"),
                evidence.get("function") or "",
            ),
            fix=_fix(data.get("fix")),
            evidence=evidence,
        )


def _text(data: dict[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string")
    return value


def _number(data: dict[str, Any], name: str) -> int:
    value = data[name]
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{name} is not a whole number")
    return value


def _fix(data: dict[str, Any] | None) -> Fix | None:
    if data is None:
        return None
    title = data.get("title", "")
    if not isinstance(title, str) or not isinstance(data["safe"], bool):
        raise ValueError("the fix has no title, or does not say whether it is safe")
    return Fix(title, tuple(map(_edit, data["edits"])), data["safe"])


def _edit(data: dict[str, Any]) -> Edit:
    return Edit(
        _number(data, "line"),
        _number(data, "column"),
        _number(data, "end_line"),
        _number(data, "end_column"),
        _text(data, "content"),
        _text(data, "path") if "path" in data else None,
    )


def _evidence(data: dict[str, Any]) -> dict[str, Any]:
    """Evidence may hold anything; what we read in it is looked at."""
    for name in ("function", "optimizer", "module", "op"):
        if data.get(name) is not None:
            _text(data, name)
    if data.get("cell") is not None:
        _number(data, "cell")
    for name, kind in (("witness", dict), ("settings", str), ("also", int)):
        listed = data.get(name) or []
        if not isinstance(listed, list) or not all(isinstance(one, kind) for one in listed):
            raise ValueError(f"{name} in the evidence is not a list")
    for step in data.get("witness") or []:
        _step(step)
    return data


def _step(step: dict[str, Any]) -> None:
    for name in ("event", "path"):
        _text(step, name)
    _number(step, "line")
    called = step.get("called_from") or []
    if not isinstance(called, list) or not all(isinstance(place, str) for place in called):
        raise ValueError("called_from in the evidence is not a list")
