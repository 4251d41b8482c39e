"""Which type autocast gives each operation's result, on a device or, without one, from torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

__all__ = ["OPERATIONS", "contrastive", "dispatched", "half_embeddings", "names", "ran"]

# Each is given a square matrix.
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x,
    "conv1d": lambda x: F.conv1d(x.unsqueeze(0), x.unsqueeze(2)),
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: x**2,
    "sum": torch.sum,
    "prod": torch.prod,
    "cumsum": lambda x: x.cumsum(0),
    "norm": torch.linalg.vector_norm,
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, x.softmax(1)),
    "mean": torch.mean,
    "var": torch.var,
    "std": torch.std,
    "max": torch.max,
    "sqrt": torch.sqrt,
    "add": lambda x: x + x,
    "div": lambda x: x / x,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
}


def dispatched(
    device: str, dtype: torch.dtype = torch.float16, *, given: torch.dtype | None = None
) -> dict[str, str]:
    """The types under autocast as torch's dispatcher decides them, computed on fake tensors: no device is needed.

    `given` is the type of the inputs, autocast's own unless told otherwise.
    """
    with FakeTensorMode(), _enabled(device, dtype):
        x = torch.empty(8, 8, device=device, dtype=given or dtype)
        return names({name: f(x) for name, f in OPERATIONS.items()})


def ran(
    device: str, dtype: torch.dtype = torch.float16, *, given: torch.dtype | None = None
) -> dict[str, str]:
    """The types under autocast of operations that really ran."""
    with torch.autocast(device, dtype):
        x = torch.ones(8, 8, device=device, dtype=given or dtype)
        return names({name: f(x) for name, f in OPERATIONS.items()})


def names(results: dict[str, Tensor]) -> dict[str, str]:
    return {name: str(result.dtype).removeprefix("torch.") for name, result in results.items()}


@contextmanager
def _enabled(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Autocast for a device that need not be there, which torch.autocast would refuse."""
    enabled, previous = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, previous)


def half_embeddings(device: str = "cpu") -> Tensor:
    """16 normalised embeddings as a float16 network gives them."""
    torch.manual_seed(0)
    return F.normalize(torch.randn(16, 64), dim=1).to(device, torch.float16).requires_grad_()


def contrastive(z: Tensor, temperature: float, *, exp_in: torch.dtype | None = None) -> Tensor:
    """The contrastive loss as it is often written by hand: exp of similarities over temperature.

    `exp_in` is the type exp and what follows run in, where that is not left to autocast.
    """
    similarity = z @ z.T / temperature
    e = similarity.to(exp_in or similarity.dtype).exp()
    return -(e.diagonal() / e.sum(1)).log().mean()
