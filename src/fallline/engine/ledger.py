"""The ledger of data: which samples each update has consumed, in a few numbers for any number of updates."""

from __future__ import annotations

from typing import Any

from fallline.errors import EngineError

__all__ = ["Ledger"]


class Ledger:
    """Rows of (first update, how many, epoch, first place, places of each): updates that follow each other evenly are one row."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []

    def add(self, update: int, epoch: int, begin: int, end: int) -> None:
        """One more update, from `begin` to `end` in the global order of an epoch."""
        if self._rows:
            first, count, in_epoch, start, each = self._rows[-1]
            follows = (first + count, in_epoch, start + count * each, each)
            if follows == (update, epoch, begin, end - begin):
                self._rows[-1][1] += 1
                return
        self._rows.append([update, 1, epoch, begin, end - begin])

    def find(self, update: int) -> tuple[int, int, int]:
        """Epoch, first and last place of an update."""
        for first, count, epoch, start, each in reversed(self._rows):
            if first <= update < first + count:
                begin = start + (update - first) * each
                return epoch, begin, begin + each
        raise EngineError(
            f"the samples of update {update} are not known: over() was not given a loader with a global order (ranks.loader, fallline.Order)"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [list(row) for row in self._rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [list(row) for row in state["rows"]]
