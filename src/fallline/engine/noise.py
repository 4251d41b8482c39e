"""Gaussian noise on the gradient, for exploration (Neelakantan et al., 2015). Not for privacy: see the error it raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fallline.engine.gradients import is_dtensor
from fallline.errors import EngineError

__all__ = ["Noise"]

_NOT_PRIVATE = (
    "noise for privacy is refused: differential privacy needs every sample's own gradient clipped before noise is added, and an "
    "accumulated gradient has already mixed the samples (clip-then-noise on it tells two neighbouring data sets apart every time). "
    "Use a library that clips per sample, such as Opacus; for exploration give a number"
)


class Noise:
    """The same noise on every rank, and after every resume: it depends on the update's number alone."""

    def __init__(self, deviation: float | Callable[[int], float]) -> None:
        if isinstance(deviation, str):
            raise EngineError(_NOT_PRIVATE)
        if not callable(deviation) and not deviation >= 0:
            raise EngineError(
                f"noise={deviation}: give a standard deviation of 0 or more, or a function of the update's number"
            )
        self._deviation = deviation

    def add_(self, grads: Sequence[Tensor], update: int) -> None:
        deviation = self._deviation(update) if callable(self._deviation) else self._deviation
        generators: dict[Any, torch.Generator] = {}
        for grad in grads:
            if grad.device not in generators:
                generators[grad.device] = torch.Generator(grad.device).manual_seed(update)
            shape = grad.shape  # the whole, also where this rank holds a shard of it: all ranks must draw the same numbers
            kind = torch.complex64 if grad.is_complex() else torch.float32
            noise = torch.randn(
                shape, generator=generators[grad.device], device=grad.device, dtype=kind
            ).to(grad.dtype)
            if is_dtensor(grad):
                from torch.distributed.tensor import distribute_tensor

                noise = distribute_tensor(noise, grad.device_mesh, grad.placements)  # type: ignore[attr-defined]
            grad.add_(noise, alpha=deviation)
