"""A place in the user's source."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Location"]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source. Lines and columns count from 1; the end is exclusive."""

    path: str
    line: int
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def near(self, other: Location) -> str:
        """`line 12` for a message in the same file, `utils.py:12` for one in another file."""
        return f"line {self.line}" if self.path == other.path else str(self)
