"""FL309: training passes through `model.module`, and through the DDP model."""

from __future__ import annotations

from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import apart, batches, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

UPDATES = 30


@experiment(
    "FL309",
    claim="Through model.module no gradient is ever sent: each rank trains a model of its own, and nothing raises.",
)
def module_bypasses_ddp() -> Measured:
    wrong, right = (on_ranks(partial(_train, past=past))[0] for past in (True, False))
    return Measured(
        sides={
            "wrong": {
                "all-reduces": wrong[1],
                f"ranks apart after {UPDATES} updates": wrong[0][-1],
                "loss on rank 0": wrong[2],
            },
            "right": {
                "all-reduces": right[1],
                f"ranks apart after {UPDATES} updates": right[0][-1],
                "loss on rank 0": right[2],
            },
        },
        conclusion=f"{UPDATES} updates through model.module made {wrong[1]} all-reduces, and a parameter differs by up to {wrong[0][-1]:.2f} between the "
        f"ranks; through the DDP model {right[1]} and {right[0][-1]:g}",
        holds={
            "past DDP nothing is sent": wrong[1] == 0,
            "and the ranks drift apart": wrong[0][-1] > 1e-3,
            "through DDP they stay bit for bit the same": max(right[0]) == 0,
        },
        curves={"wrong": wrong[0], "right": right[0]},
        axes=("update", "largest difference between ranks"),
    )


def _train(rank: int, world: int, *, past: bool) -> tuple[list[float], int, float]:
    model, traffic = in_ddp(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drift = [apart(model)]
    loss = torch.zeros(())
    for x, y in batches(rank, UPDATES):
        loss = mse(model.module(x) if past else model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        drift.append(apart(model))
    return drift, traffic.all_reduces, loss.item()
