"""FL321: one of two ranks takes longer for each of its batches."""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

UPDATES, SLOW_BY = 20, 0.05  # seconds


@experiment(
    "FL321",
    claim="Where one rank is slow, every update of the other takes as long as that of the slow one, and most of it is waiting.",
)
def straggler() -> Measured:
    wrong, right = (on_ranks(partial(_train, slow_by=slow_by)) for slow_by in (SLOW_BY, 0.0))
    (fast, own), (slow, _) = wrong
    return Measured(
        sides={"wrong": _told(wrong), "right": _told(right)},
        conclusion=f"rank 1 is slow by {1000 * SLOW_BY:.0f} ms in each of {UPDATES} updates: an update takes {1000 * slow:.0f} ms on rank 1 and {1000 * fast:.0f} ms on rank 0, "
        f"which needs {1000 * own:.1f} ms for its own batch; with no slow rank it takes {1000 * right[0][0]:.1f} ms",
        holds={
            "both take as long as the slow one": fast > 0.8 * SLOW_BY and 0.8 < fast / slow < 1.25,
            "the fast one mostly waits": own < 0.5 * fast,
        },
    )


def _told(ranks: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "update of rank 0, ms": 1000 * ranks[0][0],
        "update of rank 1, ms": 1000 * ranks[1][0],
        "batch of rank 0 until its backward, ms": 1000 * ranks[0][1],
    }


def _train(rank: int, world: int, *, slow_by: float) -> tuple[float, float]:
    """Seconds of an update, and of it before the backward in which the ranks meet."""
    model, _ = in_ddp(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    updates, own = [], []
    for x, y in batches(rank, UPDATES):
        start = time.perf_counter()
        if rank == 1:
            time.sleep(slow_by)
        optimizer.zero_grad()
        loss = mse(model(x), y)
        own.append(time.perf_counter() - start)
        loss.backward()
        optimizer.step()
        updates.append(time.perf_counter() - start)
    return median(updates), median(own)
