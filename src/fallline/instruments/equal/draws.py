"""Random numbers that a loop draws for every sample of a batch: the same for a sample in whichever batch it is.

A denoiser draws noise between loader and model. Drawn for a large batch, other samples would get other noise than in small ones. So
a tensor with one row for each sample gets, in every way, rows that depend on the sample and on how many were drawn before.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fallline.taps.patches import Patches, Wrapped

__all__ = ["SampleDraws"]


class SampleDraws:
    """Patches torch's functions that draw. `samples`: the rows of the batch that the loop works on, once there is one."""

    def __init__(self, patches: Patches, *, reverse: bool = False) -> None:
        """`reverse`: the rows of a batch are its samples in reversed order."""
        self._reverse = reverse
        self.samples: list[str] = []
        self._count = 0
        for name in ("randn", "randn_like"):
            patches.patch(torch, name, lambda original: self._drawing(original, _normal))
        for name in ("rand", "rand_like"):
            patches.patch(torch, name, lambda original: self._drawing(original, _uniform))
        for name in ("randint", "randint_like"):
            patches.patch(torch, name, lambda original: self._drawing(original, _integers))

    def batch(self, samples: list[str]) -> None:
        """The loop has got a batch of these."""
        self.samples, self._count = samples[::-1] if self._reverse else samples, 0

    def _drawing(self, original: Wrapped, row: Callable[[Tensor, Any, Any], Tensor]) -> Wrapped:
        def draw(*args: Any, **kwargs: Any) -> Any:
            drawn = original(*args, **kwargs)
            if kwargs.get("generator") is not None or kwargs.get("out") is not None:
                return drawn
            if not self.samples or drawn.dim() < 1 or drawn.shape[0] != len(self.samples):
                return drawn
            self._count += 1
            rows = [row(drawn[i], self._generator(s), (drawn, args, kwargs)) for i, s in enumerate(self.samples)]  # fmt: skip
            with torch.no_grad():
                drawn.copy_(torch.stack(rows))
            return drawn

        return draw

    def _generator(self, sample: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self._count}:{sample}".encode()))


def _normal(row: Tensor, generator: torch.Generator, _: Any) -> Tensor:
    return torch.empty(row.shape).normal_(generator=generator)


def _uniform(row: Tensor, generator: torch.Generator, _: Any) -> Tensor:
    return torch.empty(row.shape).uniform_(generator=generator)


def _integers(row: Tensor, generator: torch.Generator, call: Any) -> Tensor:
    _, args, kwargs = call
    bounds = [a for a in args if isinstance(a, int)]
    low = kwargs.get("low", bounds[0] if len(bounds) > 1 else 0)
    high = kwargs.get("high", bounds[-1] if bounds else low + 1)
    return torch.empty(row.shape, dtype=torch.int64).random_(
        int(low), int(high), generator=generator
    )
