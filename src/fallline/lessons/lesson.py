"""One call of a model in training: what went in, and what it was taught to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fallline.location import Location

__all__ = ["IGNORED", "Given", "Lesson", "Observation", "keep", "note"]

IGNORED = -100  # a label that does not count, as torch and Transformers write it

Observation = dict[str, Any]  # a code, a place, and what was measured: a rule makes a finding of it


@dataclass(slots=True)
class Given:
    """What a loss function was given: targets on the CPU, and the shape of the predictions."""

    function: str
    target: Tensor
    predicted: tuple[int, ...]
    reduction: str
    ignored: int | None
    at: Location | None
    weights: Tensor | None = (
        None  # the gradient that each prediction got, where the loss was not reduced
    )
    total: Tensor | None = None  # the sum of the factors with which each prediction's loss counts

    @property
    def classes(self) -> int:
        return self.predicted[1] if len(self.predicted) > 1 else self.predicted[-1]


@dataclass(slots=True)
class Lesson:
    """What one call of the model saw. All tensors are copies on the CPU.

    For tokens: `ids` has a row for each sample. `labels` has one column more: `labels[b, p]` is what the model is taught
    to say in the place of `ids[b, p]` (from the tokens before it), IGNORED where it is taught nothing.
    """

    at: Location | None
    model: str
    inputs: dict[str, Any] = field(default_factory=dict)  # by the names of `forward`
    batch: Any = None  # what the loader gave last
    given: list[Given] = field(default_factory=list)
    ids: Tensor | None = None
    attention: Tensor | None = None  # True where a token is real
    positions: Tensor | None = None
    labels: Tensor | None = None
    shift: int | None = None  # 0: right; 1: shifted twice; -1: not at all; None: cannot be said
    causal: bool | None = None
    in_place: bool = False  # labels are about the tokens at their own place (tags, masked words), not about the next one

    @property
    def supervised(self) -> Tensor | None:
        """Which tokens are learned: as `labels`."""
        return None if self.labels is None else self.labels != IGNORED

    def rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Each sample: its tokens, which of them are real, and its labels."""
        assert self.ids is not None
        real = torch.ones_like(self.ids, dtype=torch.bool)
        if self.attention is not None:
            real = self.attention
        for row in range(self.ids.shape[0]):
            yield self.ids[row], real[row], None if self.labels is None else self.labels[row]


def keep(observed: list[Observation], new: Observation) -> None:
    """One of each code and place."""
    key = (new["code"], new["path"], new["line"])
    if not any((o["code"], o["path"], o["line"]) == key for o in observed):
        observed.append(new)


def note(code: str, at: Location | None, **facts: Any) -> Observation:
    """An observation at a place of the user's."""
    place = at or Location("<batches>", 1)
    here = {"path": place.path, "line": place.line, "column": place.column}
    return {"code": code, **here, "function": place.function, **facts}
