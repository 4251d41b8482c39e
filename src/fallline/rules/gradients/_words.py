"""Words that messages share."""

from __future__ import annotations

from fallline.location import Location

__all__ = ["place"]


def place(at: Location, near: Location) -> str:
    """`line 12` in the file of the finding, `utils.py:12` in another one."""
    return f"line {at.line}" if at.path == near.path else str(at)
