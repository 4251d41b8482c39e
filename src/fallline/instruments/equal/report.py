"""What `fallline equal` answers with."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Comparison", "Equal", "Unvaried", "times"]

_SHOWN = 4


@dataclass
class Comparison:
    """The update of the loop against the same update made another way."""

    what: str  # "accumulation" | "remainder" | "tokens" | "clipping" | "checkpointing" | "compile" | ...
    ratio: float | None  # length of the loop's gradient over that of the reference
    cosine: float | None
    tolerance: float
    equal: bool
    code: str | None
    path: str
    line: int
    message: str
    # parameters that differ most, with their own ratio and cosine
    parameters: list[tuple[str, float, float]] = field(default_factory=list)


@dataclass
class Unvaried:
    """What was not compared, and why."""

    what: str
    why: str


@dataclass
class Equal:
    """Whether one update of the loop is the same update in every way that was tried."""

    comparisons: list[Comparison] = field(default_factory=list)
    unvaried: list[Unvaried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    # peak bytes of the loop as written, and of the other way that took most: host, device
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    partial: bool = False
    status: int = 0  # of the script, where it failed

    @property
    def verdict(self) -> str:
        if any(not c.equal for c in self.comparisons):
            return "different"
        return "equal" if self.comparisons else "unknown"

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _finite({"verdict": self.verdict, **asdict(self)})
        return found

    def text(self) -> str:
        lines = [f"equal: {self._headline()}"]
        wrong = [c for c in self.comparisons if not c.equal]
        for comparison in (*wrong, *(c for c in self.comparisons if c.equal)):
            mark = " " if comparison.equal else "x"
            lines.append(f"  {mark} {comparison.what}: {comparison.message}")
            lines += _parameters(comparison)
        lines += [f"  - {one.what} was not compared: {one.why}" for one in self.unvaried]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _headline(self) -> str:
        wrong = sum(not c.equal for c in self.comparisons)
        total = len(self.comparisons)
        if self.verdict == "unknown":
            return "nothing could be compared"
        if not wrong:
            ways = "the one other way" if total == 1 else f"{total} other ways"
            return f"this update is the same in {ways}"
        return (
            f"this update is different in {wrong} of {total} other way{'' if total == 1 else 's'}"
        )


def _finite(value: Any) -> Any:
    """JSON has no infinity: the ratio to a gradient of zero is null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


def _parameters(comparison: Comparison) -> list[str]:
    """The parameters, where they do not all differ by the same factor."""
    if comparison.equal or len(comparison.parameters) < 1:
        return []
    first = comparison.parameters[0]
    if all(
        abs(r - first[1]) < 1e-2 * abs(first[1]) and c > 0.999 for _, r, c in comparison.parameters
    ):
        return []
    shown = comparison.parameters[:_SHOWN]
    lines = [
        f"      {name}: {times(ratio)} as long, direction {cosine:.2f}"
        for name, ratio, cosine in shown
    ]
    left = len(comparison.parameters) - len(shown)
    return [*lines, f"      and {left} more parameters"] if left else lines


def times(ratio: float) -> str:
    """`2.00x`; more digits where it is small, none where it is large."""
    if ratio >= 1000:
        return f"{ratio:.0f}x"
    return f"{ratio:.2f}x" if ratio >= 0.095 or not ratio else f"{ratio:.2g}x"
