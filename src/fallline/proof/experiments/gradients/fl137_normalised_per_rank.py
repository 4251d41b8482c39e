"""FL137: two ranks in DDP that divide their loss by the number of ranks, and two that sum gradients by hand."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, in_ddp, mse, network
from fallline.proof.ranks import on_ranks


@experiment(
    "FL137",
    claim="DDP averages over ranks: a loss that is divided by their number as well gives gradients that are that many times too small, and a sum by hand without a division too large.",
)
def normalised_per_rank() -> Measured:
    divided, plain, summed = (
        on_ranks(partial(_norm, how=how))[0] for how in ("divided", "plain", "summed")
    )
    return Measured(
        sides={
            "wrong": {"gradient norm": divided, "gradient norm, summed by hand": summed},
            "right": {"gradient norm": plain},
        },
        conclusion=f"on two ranks a loss divided by the number of ranks gives {divided / plain:.2f} of DDP's gradient, and gradients summed by hand {summed / plain:.2f}",
        holds={
            "divided twice it is half": abs(divided / plain - 0.5) < 1e-3,
            "summed and not divided it is double": abs(summed / plain - 2) < 1e-3,
        },
    )


def _norm(rank: int, world: int, *, how: str) -> float:
    model = network()
    inputs, targets = batches(rank, 1)[0]
    if how == "summed":
        mse(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    else:
        wrapped, _ = in_ddp(model)
        (mse(wrapped(inputs), targets) / (world if how == "divided" else 1)).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return float(torch.cat([g.reshape(-1) for g in gradients]).norm())
