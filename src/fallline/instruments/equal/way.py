"""One way to make the update: what differs from the loop as it is written. Needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["AS_WRITTEN", "Way"]


@dataclass(frozen=True)
class Way:
    """Everything here is off by default: `Way("as written")` is the loop itself, with dropout off."""

    name: str
    at_once: int = 1  # so many of the loader's batches are made one
    loader: int = -1  # which DataLoader that is, counted in the order they are made
    limit: int = 0  # the loader ends after so many of its batches, 0: it does not
    dropout: bool = False  # dropout stays on
    reverse: bool = False  # the samples of a batch in reversed order
    pad: int = 0  # so many positions more at the end of every sequence
    without: tuple[str, ...] = ()  # features that are turned off: see `switches.OFF`
    ranks: int = 1
    rank_batches: int = 1  # like at_once, for the one process that stands for several ranks
    batches: tuple[tuple[int, ...], ...] = ()  # the samples of the loader's first batches
    one_sample: bool = (
        False  # every sample is the first one of the training data, and steps do nothing
    )
    labels: bool = False  # labels that are shifted twice are shifted once
    offload: bool = False  # what the forward pass keeps for the backward waits in the host's memory
    budget: int = 0  # bytes that the forward pass may keep, 0: all that it wants
    launched: bool = False  # started as torchrun starts a rank, also where there is only one
    update: int = 0  # which update is looked at; those before it are made as written
    before: int = 0  # so many batches of the loader come before it
    optimizer: int = (
        -1
    )  # which optimizer's, counted in the order they are made; -1: the first that steps
    double: bool = False  # models and what they are given in float64
    keep: str = ""  # a file for what models and losses are given
    feed: str = ""  # such a file: all of it is given at once

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Way:
        batches = tuple(tuple(batch) for batch in fields.get("batches", ()))
        return cls(**{**fields, "without": tuple(fields.get("without", ())), "batches": batches})

    def but(self, name: str, **changes: Any) -> Way:
        """The same with something changed."""
        return replace(self, name=name, **changes)


AS_WRITTEN = Way("as written")
