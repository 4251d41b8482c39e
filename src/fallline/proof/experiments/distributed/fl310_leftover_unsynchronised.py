"""FL310: two micro-batches are left over at the end of an epoch; nobody sends them, or the last one does."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import apart, batches, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

K, LEFT, EPOCHS = 4, 2, 4


@experiment(
    "FL310",
    claim="A step from micro-batches that all ran under no_sync drives the ranks apart, and later synchronised steps do not bring them together.",
    taught="The loop with no_sync, accumulation and a leftover step at the end of the epoch combines everything correctly.",
)
def leftover_unsynchronised() -> Measured:
    wrong, right = (on_ranks(partial(_train, sent=sent))[0] for sent in (False, True))
    first = wrong[2]  # after the full window, the step from the remainder
    return Measured(
        sides={
            "wrong": {
                "ranks apart after the leftover step": first,
                "after the next synchronised step": wrong[3],
                f"after {EPOCHS} epochs": wrong[-1],
            },
            "right": {
                "ranks apart after the leftover step": right[2],
                "after the next synchronised step": right[3],
                f"after {EPOCHS} epochs": right[-1],
            },
        },
        conclusion=f"one step from {LEFT} micro-batches that were never sent puts the ranks {first:.3f} apart, the next synchronised step leaves them "
        f"{wrong[3]:.3f} apart, and after {EPOCHS} epochs it is {wrong[-1]:.3f}; with the last micro-batch sent it is {max(right):g}",
        holds={
            "the leftover step drives the ranks apart": first > 1e-4,
            "a synchronised step does not heal it": wrong[3] > 0.5 * first,
            "every epoch adds to it": wrong[-1] > first,
            "with the last micro-batch sent they stay the same": max(right) == 0,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "largest difference between ranks"),
    )


def _train(rank: int, world: int, *, sent: bool) -> list[float]:
    model, _ = in_ddp(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = batches(rank, K + LEFT)
    drift = [apart(model)]
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(data):
            full, end = (i + 1) % K == 0, i + 1 == len(data)
            with nullcontext() if full or (end and sent) else model.no_sync():
                (mse(model(x), y) / K).backward()
            if full or end:
                optimizer.step()
                optimizer.zero_grad()
                drift.append(apart(model))
    return drift
