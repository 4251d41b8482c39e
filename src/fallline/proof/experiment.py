"""An experiment: a small seeded measurement that shows a claim to be true here, or catches it being false.

    @experiment("FL104", claim="Summed micro-batches without a division are a step k times too long with SGD.")
    def accumulation_unscaled() -> Measured:
        ...
        return Measured(
            sides={"wrong": {"first step, SGD": 4.0}, "right": {"first step, SGD": 1.0}},
            conclusion=f"the first SGD step is {ratio:.2f} times too long",
            holds={"SGD's step is k times too long": abs(ratio - 4) < 1e-3},
            curves={"wrong": wrong_losses, "right": right_losses},
            axes=("update", "loss"),
        )

A rule's experiment is named by its code, a fact by its own stable name. `holds` says in words what must be so; one
`False` refutes the claim. Numbers may differ in their last digits between machines: a condition leaves room for that.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fallline.specialists import Specialist, specialist_in

__all__ = [
    "Experiment",
    "Measured",
    "all_experiments",
    "experiment",
    "experiments_in",
    "where",
]

Value = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What one experiment saw."""

    # What is compared ("wrong" and "right" for a rule), each with its named quantities.
    sides: Mapping[str, Mapping[str, Value]]
    conclusion: str  # one sentence, with the numbers in it
    holds: Mapping[str, bool]  # what must be so for the claim to be true, in words
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # for the small plot
    axes: tuple[str, str] = ("", "")  # what runs along the plot, and what goes up
    # The plot's horizontal positions where they are not 0, 1, 2, ...; the same for all curves.
    positions: Sequence[float] = ()

    @property
    def proved(self) -> bool:
        return bool(self.holds) and all(self.holds.values())


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim and the measurement that decides it."""

    of: str  # a rule's code or a fact's name
    claim: str  # one sentence
    measure: Callable[[], Measured]
    room: str  # the folder it lies in: "gradients", "precision", ...
    taught: str = ""  # what teaching material says instead, where that is wrong
    needs: str = ""  # "cuda" where no CPU can show it

    @property
    def is_rule(self) -> bool:
        return self.of.startswith("FL") and self.of[2:].isdigit()

    @property
    def specialist(self) -> Specialist:
        return specialist_in(self.room)


def experiment(
    of: str, *, claim: str, taught: str = "", needs: str = ""
) -> Callable[[Callable[[], Measured]], Experiment]:
    """Make a function the experiment of a rule (by code) or a fact (by name)."""

    def make(measure: Callable[[], Measured]) -> Experiment:
        room = measure.__module__.rpartition(".")[0].rpartition(".")[2]
        return Experiment(of, claim, measure, room, taught, needs)

    return make


def experiments_in(module: str) -> dict[str, Experiment]:
    """By name, those of a module, which is imported."""
    there = vars(importlib.import_module(module)).values()
    return {e.of: e for e in there if isinstance(e, Experiment)}


@cache
def where() -> dict[str, str]:
    """The module of every experiment by its name, from the text of the files: nothing is imported, so torch need not be there."""
    home = Path(__file__).parent / "experiments"
    return {
        name: f"fallline.proof.experiments.{path.parent.name}.{path.stem}"
        for path in sorted(home.glob("*/[!_]*.py"))
        for name in re.findall(
            r'^@experiment\(\s*"([^"]+)"', path.read_text(encoding="utf-8"), re.M
        )
    }


@cache
def all_experiments() -> tuple[Experiment, ...]:
    """Every experiment under `experiments/`: rules by code, then facts by name."""
    found = [e for module in set(where().values()) for e in experiments_in(module).values()]
    return tuple(sorted(found, key=lambda e: (not e.is_rule, e.of)))
