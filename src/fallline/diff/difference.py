"""What `fallline diff` answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fallline.runs.noise import Noise

__all__ = ["KINDS", "Comparison", "Difference", "Kind"]

Kind = Literal[
    "environment", "code", "options", "data", "initialisation", "learning-rate", "optimizer", "numbers"
]  # fmt: skip
# In the order in which one causes the next
KINDS: tuple[Kind, ...] = (
    "environment", "code", "options", "data", "initialisation", "learning-rate", "optimizer", "numbers",
)  # fmt: skip


@dataclass
class Difference:
    """One thing that differs. `a` and `b` are what each run has."""

    kind: Kind
    what: str  # a sentence
    update: int | None = None  # None: before training
    module: str | None = None
    name: str = ""  # of what differs: an option, a package, a parameter
    a: Any = None
    b: Any = None

    @property
    def order(self) -> tuple[int, int]:
        """Causes that are there before training come first, by kind; then what happens first."""
        return (-1 if self.update is None else self.update, KINDS.index(self.kind))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "what": self.what,
            "update": self.update,
            "module": self.module,
            "name": self.name,
            "a": self.a,
            "b": self.b,
        }


@dataclass
class Comparison:
    """`same`: the runs train the same within noise, whatever else differs around them."""

    same: bool
    differences: list[Difference]
    noise: Noise
    updates: int  # that both runs made
    notes: list[str] = field(default_factory=list)
    agrees: list[str] = field(default_factory=list)  # what was compared and is the same

    @property
    def first(self) -> Difference | None:
        return self.differences[0] if self.differences else None

    def to_json(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "first": self.first.to_json() if self.first is not None else None,
            "differences": [d.to_json() for d in self.differences],
            "noise": self.noise.to_json(),
            "updates": self.updates,
            "agrees": self.agrees,
            "notes": self.notes,
        }
