"""How many bad updates the guard keeps out before it says that training is broken.

A run whose updates are NaN again and again does not train, and a guard that keeps quiet about it hides that.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Limit"]

IN_A_ROW = 10
SHARE, OF_LAST = 0.05, 200


class Limit:
    """Counts the guarded updates of each optimizer. Finite updates cost nothing here."""

    def __init__(self) -> None:
        self._bad: dict[int, deque[int]] = {}  # by set of parameters, which updates

    def reached(self, held: int, index: int) -> str | None:
        """One more update was guarded: what is too much, in words; None while it is not."""
        most = round(SHARE * OF_LAST)
        bad = self._bad.setdefault(held, deque(maxlen=most + 1))
        bad.append(index)
        recent = list(bad)[-IN_A_ROW:]
        if len(recent) == IN_A_ROW and recent[-1] - recent[0] == IN_A_ROW - 1:
            return f"{IN_A_ROW} updates in a row"
        if len(bad) > most and index - bad[0] < OF_LAST:
            return f"more than {SHARE:.0%} of the last {OF_LAST} updates"
        return None
