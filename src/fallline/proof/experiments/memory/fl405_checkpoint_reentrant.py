"""FL405: checkpoint() without use_reentrant, on a block whose input needs no gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of

Run = Callable[..., Tensor]


@experiment(
    "FL405",
    claim="Left out, use_reentrant means the old kind: no gradients behind an input that needs none, no keyword "
    "arguments, no torch.autograd.grad.",
)
def checkpoint_reentrant() -> Measured:
    wrong, right = _try(checkpoint), _try(partial(checkpoint, use_reentrant=False))
    plain = _try(lambda block, *args, **kwargs: block(*args, **kwargs))
    return Measured(
        sides={"wrong": wrong, "right": right, "without checkpointing": plain},
        conclusion=f"of the block's 2 parameters {wrong['parameters with a gradient']} get a gradient without "
        f"use_reentrant, {right['parameters with a gradient']} with use_reentrant=False",
        holds={
            "the old kind gives the block no gradient": wrong["parameters with a gradient"] == 0,
            "it takes no keyword arguments": wrong["error with keyword arguments"] == "ValueError",
            "torch.autograd.grad raises": wrong["error of torch.autograd.grad"] == "RuntimeError",
            "torch warns about the missing argument": bool(wrong["warns"]),
            "use_reentrant=False does what no checkpointing does": right == plain,
        },
    )


def _try(run: Run) -> dict[str, int | str | bool]:
    torch.manual_seed(0)
    block, data = nn.Linear(4, 4), torch.randn(8, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = run(block, data)
        if output.requires_grad:
            output.sum().backward()
        needs_gradient = data.clone().requires_grad_()
        keywords = error_of(lambda: run(_scaled, needs_gradient, by=2.0))
        grad = error_of(
            lambda: torch.autograd.grad(run(block, needs_gradient).sum(), needs_gradient)
        )
    return {
        "parameters with a gradient": sum(p.grad is not None for p in block.parameters()),
        "error with keyword arguments": keywords,
        "error of torch.autograd.grad": grad,
        "warns": any("use_reentrant parameter" in str(w.message) for w in caught),
    }


def _scaled(x: Tensor, by: float = 1.0) -> Tensor:
    return x * by
