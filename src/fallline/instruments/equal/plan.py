"""What every comparison starts from: the loop as it is written, how exact its gradient is, and the runs to compare it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fallline.instruments.equal.pieces import compare, rounding
from fallline.instruments.equal.record import Record
from fallline.instruments.equal.report import Comparison, Equal, Unvaried
from fallline.instruments.equal.runs import Failed, Runs
from fallline.instruments.equal.way import Way

__all__ = ["Plan"]

_NOTHING = 0.5  # of a gradient's length: what is equal within so much has not been compared


@dataclass
class Plan:
    """The base run, and what is found with it."""

    runs: Runs
    answer: Equal
    way: Way  # as written; started like a job of one rank, where the script asks for that
    base: Record
    ranks: int = 2
    tolerances: dict[Way, float] = field(default_factory=dict)

    @property
    def k(self) -> int:
        return len(self.base.backwards)

    @property
    def budget(self) -> int:
        """What activations may take in one of the other ways: half of what the loop takes as it is written, because outputs and
        gradients of the large batch come on top."""
        host, device = self.runs.memory()["as_written"]
        return (device or host) // 2

    @property
    def before(self) -> int:
        """Batches of the loader that earlier updates are made of."""
        return self.way.update * self.base.batches

    def without(self, feature: str, **changes: Any) -> Way:
        """The loop with this turned off, too. Most features save memory: the activations stay within the budget."""
        off = (*self.way.without, feature)
        return self.way.but(f"without {feature}", without=off, budget=self.budget, **changes)

    def add(self, comparison: Comparison | None) -> None:
        if comparison is None:
            return
        if comparison.equal and comparison.tolerance >= _NOTHING:
            self.cannot(comparison.what, "rounding alone changes this gradient by as much as its own length (it is zero, or nearly)")  # fmt: skip
            return
        self.answer.comparisons.append(comparison)

    def cannot(self, what: str, why: str) -> None:
        """This was not compared, and why."""
        self.answer.unvaried.append(Unvaried(what, why))

    def attempt(self, what: str, way: Way, said: str) -> Record | None:
        """A run that may fail: then that is what there is to say about it."""
        try:
            return self.runs.run(way)
        except Failed as why:
            self.cannot(what, f"{said}: {why}")
            return None

    def tolerance(self, way: Way | None = None) -> float:
        """How far apart two right gradients may be: what a repeat differs by, and the rounding of the formats."""
        way = way or self.way
        if way not in self.tolerances:
            first, again = self.runs.run(way), self.runs.run(way, again=True)
            noise = compare(again.unclipped, first.unclipped, 0.0).apart
            self.tolerances[way] = noise + rounding(first)
        return self.tolerances[way]
