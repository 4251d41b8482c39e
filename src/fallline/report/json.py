"""The findings as the JSON array of the contract."""

from __future__ import annotations

from fallline.check.outcome import Outcome
from fallline.show.terminal import Paint
from fallline.untrusted import json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["plain", "render"]


def render(outcome: Outcome, paint: Paint, *, explain: bool = False) -> str:
    """One array; the witness is in each object's evidence, explained or not."""
    if not outcome.findings:
        return "[]\n"
    return json_text([plain(f.as_dict()) for f in outcome.findings], indent=2) + "\n"


def plain(value: Any) -> Any:
    """The value in what JSON has: sets become sorted lists, infinities and NaN become strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
