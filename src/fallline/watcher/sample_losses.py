"""The loss of each sample in a batch, while its loss is computed again, and what is unusual about a sample."""

from __future__ import annotations

import inspect
import statistics
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["SampleLosses", "unusual"]

# they take `reduction`, and their first two arguments are the prediction and the target
LOSSES: frozenset[Any] = frozenset(
    inspect.unwrap(function)
    for function in (
        F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits, F.kl_div, F.poisson_nll_loss, F.soft_margin_loss,
    )
)  # fmt: skip
WORST = 3
FAR = 5.0  # times the largest of the others


class SampleLosses(TorchFunctionMode):
    """Takes the last loss function apart that gives one loss, or several, for each sample."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self.values: list[float] | None = None
        self._target: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # torch gives the function that has its name now: a tap's, where one listens to losses
        if inspect.unwrap(func) in LOSSES:
            with torch.no_grad():
                self._take_apart(func, args, kwargs)
        return func(*args, **kwargs)

    def _take_apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        apart = func(*args, **{**kwargs, "reduction": "none"})
        if apart.dim() and apart.numel() % self._size == 0:
            self.values = apart.detach().reshape(self._size, -1).float().mean(1).tolist()
            self._target = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None

    @property
    def median(self) -> float:
        return statistics.median(self.values or [0.0])

    def worst(self, given: list[Tensor], indices: list[Any] | None) -> list[dict[str, Any]]:
        """The samples with the highest loss, the highest first."""
        values = self.values or []
        whole = sum(values)
        chosen = sorted(range(len(values)), key=lambda i: -values[i])[:WORST]
        named = _named(given) + ([("target", self._target)] if self._target is not None else [])
        return [
            {
                "position": i,
                "index": indices[i] if indices else None,
                "loss": values[i],
                "share": values[i] / whole if whole else 0.0,
                "unusual": _unusual(named, i, self._size),
            }
            for i in chosen
        ]


def unusual(given: list[Tensor], size: int, indices: list[Any] | None) -> list[dict[str, Any]]:
    """Samples whose values are far larger than those of all others in the batch."""
    found = []
    for i in range(min(size, 512)):
        how = _unusual(_named(given), i, size)
        if how is not None:
            found.append({"position": i, "index": indices[i] if indices else None, "unusual": how})
    return found[:WORST]


def _named(given: list[Tensor]) -> list[tuple[str, Tensor]]:
    return [("input" if n == 0 else f"input {n + 1}", tensor) for n, tensor in enumerate(given)]


def _unusual(named: list[tuple[str, Tensor]], position: int, size: int) -> str | None:
    """How one sample differs from the others: its largest value, or its length."""
    for name, tensor in named:
        if not tensor.dim() or tensor.shape[0] % size or not tensor.numel():
            continue
        rows = tensor.detach().reshape(size, -1)
        others = torch.cat((rows[:position], rows[position + 1 :]))
        if rows.is_floating_point():
            mine, most = float(rows[position].abs().max()), float(others.abs().max())
            if mine > FAR * most:
                return f"its {name} reaches {mine:.4g}, that of the others {most:.4g} at most"
        elif rows.shape[1] > 1:
            length, lengths = _length(rows[position]), [_length(r) for r in others]
            if length * FAR < min(lengths):
                return (
                    f"its {name} has {length} tokens, those of the others at least {min(lengths)}"
                )
            if length > FAR * max(lengths):
                return f"its {name} has {length} tokens, those of the others {max(lengths)} at most"
    return None


def _length(row: Tensor) -> int:
    """How many values there are before the padding, which repeats the last one."""
    values: list[int] = row.tolist()
    end = len(values)
    while end > 1 and values[end - 2] == values[-1]:
        end -= 1
    return end
