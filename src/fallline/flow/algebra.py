"""Ranges and how operations move them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["DEAD_BRANCH", "Range", "constant", "joined", "larger"]

_INF = math.inf
# Sources that are only what a name says: `named`, and what is computed from it.
_GUESSED = re.compile(
    r"the (logits|probabilities|prediction|output of|difference)\b|the (mask|count) `\w+`$|target$|norm$"
)


@dataclass(frozen=True, slots=True)
class Range:
    """`low` to `high`, both reached. `source` names what makes it so.

    Infinity stands for values as large as training sees, never for infinity itself.
    """

    low: float
    high: float
    source: str

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high

    @property
    def said(self) -> str:
        """What makes it so, for a message."""
        if self.source == "target":
            return "the target"
        return self.source if self.source.startswith("the ") else f"the result of {self.source}"

    @property
    def guessed(self) -> bool:
        """Nothing but a name says so: what rests on it alone is a note."""
        return _GUESSED.match(self.source) is not None

    @property
    def is_constant(self) -> bool:
        return self.source == "constant"

    @property
    def only_zero(self) -> bool:
        """It reaches 0, and nothing else is known of it."""
        return self.low == self.high == 0

    def negated(self) -> Range:
        return Range(-self.high, -self.low, self.source)

    def plus(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high, self._source_with(other))

    def minus(self, other: Range, source: str) -> Range:
        return Range(self.low - other.high, self.high - other.low, source)

    def times(self, other: Range) -> Range:
        ends = [_product(x, y) for x in (self.low, self.high) for y in (other.low, other.high)]
        return Range(min(ends), max(ends), self._source_with(other))

    def over(self, other: Range) -> Range | None:
        if other.has_zero:
            return None
        ends = [_quotient(x, y) for x in (self.low, self.high) for y in (other.low, other.high)]
        return Range(min(ends), max(ends), self._source_with(other))

    def absolute(self) -> Range:
        ends = (abs(self.low), abs(self.high))
        return Range(0.0 if self.has_zero else min(ends), max(ends), self.source)

    def squared(self) -> Range:
        signed = self.low < 0 < self.high or self.source == "difference"
        size = self.absolute()
        return Range(
            _product(size.low, size.low),
            _product(size.high, size.high),
            "square" if signed else self.source,
        )

    def power(self, exponent: float) -> Range | None:
        """For values that are not negative and exponents above 0."""
        if self.low < 0 or exponent <= 0:
            return None
        try:
            return Range(self.low**exponent, self.high**exponent, self.source)
        except OverflowError:
            return None

    def summed(self) -> Range:
        """The sum of any number of such values."""
        low = self.low if self.low >= 0 else -_INF
        return Range(low, _INF if self.high > 0 else self.high, self.source)

    def _source_with(self, other: Range) -> str:
        return other.source if self.is_constant else self.source


# The branch of a torch.where that is not taken: whatever is tested reaches it, and its gradient comes back.
DEAD_BRANCH = Range(-_INF, _INF, "torch.where")


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _quotient(a: float, b: float) -> float:
    """What is divided by a large value stays on its side of zero."""
    if math.isinf(b) and a != 0:
        return math.copysign(1e-30, a) * math.copysign(1.0, b)
    return a / b


def constant(number: float) -> Range:
    return Range(number, number, "constant")


def larger(a: Range | None, b: Range | None) -> Range | None:
    """The larger of two: above zero as soon as one of them is."""
    known = [r for r in (a, b) if r is not None]
    low = max((r.low for r in known), default=-_INF)
    if low > 0 or len(known) == 2:
        return Range(low, max(r.high for r in known), known[0].source)
    return None


def joined(found: list[Range | None]) -> Range | None:
    """What one of several values can reach; None where one of them is not known."""
    known = [r for r in found if r is not None]
    if not known or len(known) < len(found):
        return None
    return Range(min(r.low for r in known), max(r.high for r in known), known[0].source)
