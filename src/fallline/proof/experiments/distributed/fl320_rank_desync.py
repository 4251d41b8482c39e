"""FL320: the parameters of one rank are changed once, as an unguarded `if rank == 0:` does."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import apart, batches, flat, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

UPDATES, CHANGED_AT = 40, 10


@experiment(
    "FL320",
    claim="Once ranks differ DDP never says so and never mends it: both go on with an average gradient that is right for neither.",
)
def rank_desync() -> Measured:
    wrong, right = (on_ranks(partial(_train, changed=changed))[0] for changed in (True, False))
    return Measured(
        sides={
            "wrong": {
                "ranks apart right after the change": wrong[0][CHANGED_AT + 1],
                "ranks apart at the end": wrong[0][-1],
                "gradient off by, percent, for rank 0": wrong[1][0],
                "gradient off by, percent, for rank 1": wrong[1][1],
            },
            "right": {
                "ranks apart right after the change": right[0][CHANGED_AT + 1],
                "ranks apart at the end": right[0][-1],
                "gradient off by, percent, for rank 0": right[1][0],
                "gradient off by, percent, for rank 1": right[1][1],
            },
        },
        conclusion=f"one rank changed by 0.5 at update {CHANGED_AT}: {UPDATES - CHANGED_AT} synchronised updates later the ranks are still "
        f"{wrong[0][-1]:.2f} apart; at the change the gradient they share is {wrong[1][0]:.0f}% off for the weights of rank 0 and {wrong[1][1]:.0f}% for those of rank 1",
        holds={
            "before it the ranks are the same": wrong[0][CHANGED_AT] == 0,
            "synchronised updates do not mend it": wrong[0][-1] > 0.1,
            "the shared gradient is right for neither rank's weights": min(wrong[1]) > 5,
            "untouched, it is right for both": max(right[1]) < 0.01,
            "untouched ranks stay bit for bit the same": max(right[0]) == 0,
        },
        curves={"wrong": wrong[0], "right": right[0]},
        axes=("update", "largest difference between ranks"),
    )


def _train(rank: int, world: int, *, changed: bool) -> tuple[list[float], list[float]]:
    """How far apart the ranks are after each update, and how far the gradient shared at the change is from each rank's right one."""
    model, _ = in_ddp(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drift, off = [apart(model)], [0.0]
    data = batches(rank, UPDATES)
    for update, (x, y) in enumerate(data):
        if changed and rank == 0 and update == CHANGED_AT:
            with torch.no_grad():
                next(model.parameters()).add_(0.5)
        before = flat(model)
        optimizer.zero_grad()
        mse(model(x), y).backward()
        if update == CHANGED_AT:
            off = [_off(model, before, owner, world) for owner in range(world)]
        optimizer.step()
        drift.append(apart(model))
    return drift, off


def _off(model: torch.nn.Module, weights: torch.Tensor, owner: int, world: int) -> float:
    """Percent by which the shared gradient misses the average over all ranks' data at the owner's weights."""
    weights = weights.clone()
    dist.broadcast(weights, src=owner)
    truth = network()
    torch.nn.utils.vector_to_parameters(weights, truth.parameters())
    for other in range(world):
        x, y = batches(other, UPDATES)[CHANGED_AT]
        (mse(truth(x), y) / world).backward()
    right = torch.cat([p.grad.reshape(-1) for p in truth.parameters() if p.grad is not None])
    shared = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    return 100 * float((shared - right).norm() / right.norm())
