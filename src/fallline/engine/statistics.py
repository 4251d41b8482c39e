"""What can be said of every gradient from one read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fallline.engine.gradients import Parameters, as_real, local, sum_over_shards

__all__ = [
    "GradientStats",
    "gradient_stats",
    "has_kernel",
    "moments_of",
    "stats_of",
    "triton_installed",
]

SUM, SQUARES, LARGEST, ZEROS, NONFINITE = range(5)


@dataclass(frozen=True)
class GradientStats:
    """Statistics of each gradient, one row for one parameter, on the device where the gradients are.

    Every property is a 1-D float64 tensor in the order of `names`; nothing waits for the device before a value
    is read. `std` is that of the values themselves (divided by n, so that one element has 0, not NaN). A value
    that is not finite makes norm, mean, std and largest non-finite, as it would in torch.
    """

    names: tuple[str, ...]
    moments: Tensor  # [parameters, 5]: sum, sum of squares, largest, zeros, non-finite
    elements: Tensor  # [parameters], on the CPU: known without reading anything
    factor: float | Tensor = (
        1.0  # what the gradients still have to be multiplied with (1 / (loss scale x weight))
    )

    @property
    def _elements(self) -> Tensor:
        return self.elements.to(self.moments.device)

    @property
    def norm(self) -> Tensor:
        return self.moments[:, SQUARES].sqrt() * self.factor

    @property
    def mean(self) -> Tensor:
        return self.moments[:, SUM] / self._elements * self.factor

    @property
    def std(self) -> Tensor:
        mean = self.moments[:, SUM] / self._elements
        # clamp keeps NaN, and rounding must not make a variance negative
        return (self.moments[:, SQUARES] / self._elements - mean * mean).clamp(
            min=0
        ).sqrt() * self.factor

    @property
    def largest(self) -> Tensor:
        return self.moments[:, LARGEST] * self.factor

    @property
    def zeros(self) -> Tensor:
        """How many values are exactly zero."""
        return self.moments[:, ZEROS]

    @property
    def nonfinite(self) -> Tensor:
        """How many values are NaN or infinite."""
        return self.moments[:, NONFINITE]

    @property
    def total_norm(self) -> Tensor:
        return self.moments[:, SQUARES].sum().sqrt() * self.factor

    def rows(self) -> list[dict[str, Any]]:
        """One dict for one parameter. Waits for the device, once."""
        columns = ("norm", "mean", "std", "largest", "zeros", "nonfinite")
        table = torch.stack([getattr(self, c) for c in columns] + [self._elements], dim=1).tolist()
        rows = []
        for name, (*values, elements) in zip(self.names, table, strict=True):
            row: dict[str, Any] = {
                "name": name,
                **dict(zip(columns, values, strict=True)),
                "elements": int(elements),
            }
            row["zeros"], row["nonfinite"] = int(row["zeros"]), int(row["nonfinite"])
            rows.append(row)
        return rows

    def __len__(self) -> int:
        return len(self.names)


@torch.no_grad()
def gradient_stats(parameters: Any) -> GradientStats:
    """Norm, mean, std, largest, zeros and non-finite of every gradient: one read of memory on CUDA, no wait.

    `parameters` is what `clip_grad_norm_` takes: parameters, (name, parameter) pairs, a model or an optimizer.
    Parameters without a gradient are left out.
    """
    chosen = Parameters.of(parameters)
    grads, _ = chosen.with_gradient()
    if not grads:
        empty = torch.zeros(0, dtype=torch.float64)
        return GradientStats((), empty.reshape(0, 5), empty)
    return stats_of(grads, chosen.names_with_gradient(), moments_of(grads))


def stats_of(
    grads: Sequence[Tensor], names: Sequence[str], moments: Tensor, factor: float | Tensor = 1.0
) -> GradientStats:
    elements = torch.tensor([g.numel() for g in grads], dtype=torch.float64)
    return GradientStats(tuple(names), moments, elements, factor)


def moments_of(grads: list[Tensor]) -> Tensor:
    """[gradients, 5] in float64, of the whole gradients where they are sharded."""
    here = local(grads)
    moments = _moments_of_local(here)
    if here is grads:
        return moments
    whole = sum_over_shards(moments, grads)
    whole[:, LARGEST] = sum_over_shards(moments[:, LARGEST].contiguous(), grads, largest=True)
    return whole


def _moments_of_local(tensors: Sequence[Tensor]) -> Tensor:
    if has_kernel(tensors[0]):
        from fallline.engine.tables import table_of

        filled = [t for t in tensors if t.numel()]  # a rank may hold no row of a small parameter
        table = table_of(filled, (0,) * len(filled)) if filled else None
        if table is not None:
            if len(filled) == len(tensors):
                return table.moments(table.read())
            moments = torch.zeros(len(tensors), 5, dtype=torch.float64, device=tensors[0].device)
            moments[[i for i, t in enumerate(tensors) if t.numel()]] = table.moments(table.read())
            return moments
    return torch.stack([_moments_by_torch(t) for t in tensors])


def _moments_by_torch(tensor: Tensor) -> Tensor:
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        rest = tensor.numel() - tensor._values().numel()
        moments = _moments_by_torch(tensor._values())
        moments[ZEROS] += rest
        return moments
    tensor = as_real(tensor)
    wide = torch.float64
    if tensor.numel() == 0:
        return torch.zeros(5, dtype=wide, device=tensor.device)
    nonzero = torch.count_nonzero(tensor).to(wide)
    return torch.stack(
        [
            tensor.sum(dtype=wide),
            torch.linalg.vector_norm(tensor, dtype=wide).square(),
            torch.linalg.vector_norm(tensor, torch.inf).to(wide),
            tensor.numel() - nonzero,
            (~torch.isfinite(tensor)).sum().to(wide),
        ]
    )


@cache
def triton_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


def has_kernel(tensor: Tensor) -> bool:
    """Whether the one-pass kernel can be tried: a CUDA tensor, and Triton installed (it comes with torch for CUDA)."""
    return tensor.is_cuda and triton_installed()
