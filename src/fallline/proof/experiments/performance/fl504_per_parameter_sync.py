"""FL504: one .item() for each parameter, to log one norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.proof.experiment import Measured, experiment

LAYERS = 150


@experiment(
    "FL504",
    claim="A loop with .item() fetches one value for each parameter; the norms in one call are one fetch, for the same number.",
)
def per_parameter_sync() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(LAYERS)))
    model(torch.randn(8, 4)).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    wrong, wrong_norm = _fetches(_one_by_one, gradients)
    right, right_norm = _fetches(_at_once, gradients)
    return Measured(
        sides={
            "wrong": {"values fetched from the device": wrong, "gradient norm": wrong_norm},
            "right": {"values fetched from the device": right, "gradient norm": right_norm},
        },
        conclusion=f"for {len(gradients)} parameter tensors the loop waits {wrong} times, one call {right} time, for the same norm",
        holds={
            "the loop fetches once for each parameter": wrong == len(gradients) == 2 * LAYERS,
            "one call fetches once": right == 1,
            "the norm is the same": abs(wrong_norm / right_norm - 1) < 1e-5,
        },
    )


def _one_by_one(gradients: Iterable[Tensor]) -> float:
    squares = 0.0
    for gradient in gradients:
        squares += gradient.norm().item() ** 2
    return float(squares**0.5)


def _at_once(gradients: Iterable[Tensor]) -> float:
    return torch.nn.utils.get_total_norm(gradients).item()


def _fetches(
    norm: Callable[[Iterable[Tensor]], float], gradients: Iterable[Tensor]
) -> tuple[int, float]:
    """How often `norm` brings a value to Python, and its result."""
    with _CountFetches() as counted:
        value = norm(gradients)
    return counted.fetches, value


class _CountFetches(TorchDispatchMode):
    """Counts the operation behind .item(), on which a device with a queue has to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.fetches += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
