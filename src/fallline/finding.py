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
        """The finding that `as_dict` wrote."""
        fix = data.get("fix")
        return cls(
            code=data["code"],
            name=data["name"],
            severity=Severity(data["severity"]),
            message=data["message"],
            at=Location(
                data["path"],
                data["line"],
                data["column"],
                data["end_line"],
                data["end_column"],
                data.get("evidence", {}).get("function", ""),
            ),
            fix=None
            if fix is None
            else Fix(fix.get("title", ""), tuple(Edit(**e) for e in fix["edits"]), fix["safe"]),
            evidence=data.get("evidence", {}),
        )
