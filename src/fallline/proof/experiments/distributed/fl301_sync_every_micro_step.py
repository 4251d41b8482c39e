"""FL301: an accumulation under DDP, with and without `no_sync` on all micro-batches but the last."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, flat, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

K, UPDATES = 4, 10


@experiment(
    "FL301",
    claim="Without no_sync k micro-batches make k all-reduces for one update; with it one, and the parameters come out the same.",
    taught="no_sync with 4 micro-batches saves 3 times the communication.",
)
def sync_every_micro_step() -> Measured:
    wrong = on_ranks(partial(_train, quiet=False))[0]
    right = on_ranks(partial(_train, quiet=True))[0]
    saved = wrong[1] / right[1]
    difference = (wrong[2] - right[2]).abs().max().item()
    return Measured(
        sides={
            "wrong": {"all-reduces per update": wrong[0], "bytes sent per update": wrong[1]},
            "right": {
                "all-reduces per update": right[0],
                "bytes sent per update": right[1],
                "largest difference of a parameter": difference,
            },
        },
        conclusion=f"{K} micro-batches make {wrong[0]:.0f} all-reduces of together {wrong[1]:,.0f} bytes for one update, under no_sync "
        f"{right[0]:.0f} of {right[1]:,.0f}: {saved:.0f} times less",
        holds={
            "without no_sync every micro-batch is sent": wrong[0] == K,
            "with it only the last one": right[0] == 1,
            "the bytes fall by k": saved == K,
            "the parameters are the same": difference < 1e-5,
        },
        curves={"wrong": wrong[3], "right": right[3]},
        axes=("micro-batch", "bytes sent so far"),
    )


def _train(rank: int, world: int, *, quiet: bool) -> tuple[float, float, torch.Tensor, list[float]]:
    model, traffic = in_ddp(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sent = []
    for i, (x, y) in enumerate(batches(rank, K * UPDATES)):
        last = (i + 1) % K == 0
        with model.no_sync() if quiet and not last else nullcontext():
            (mse(model(x), y) / K).backward()
        sent.append(float(traffic.bytes))
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return traffic.all_reduces / UPDATES, traffic.bytes / UPDATES, flat(model), sent
