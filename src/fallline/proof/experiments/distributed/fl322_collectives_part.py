"""FL322: two ranks reduce the same two tensors, in the same order and not."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks


@experiment(
    "FL322",
    claim="Collectives are matched by their order alone: where one rank calls the same two in the other order, each gets the other's data, and nothing raises.",
)
def collectives_part() -> Measured:
    wrong, right = (on_ranks(partial(_sums, swapped=swapped)) for swapped in (True, False))
    return Measured(
        sides={"wrong": _told(wrong), "right": _told(right)},
        conclusion=f"losses of 1 and 2 and counts of 10 and 20 sum up to {right[0][0]:.0f} and {right[0][1]:.0f} in one order; "
        f"with another order on rank 1 rank 0 has {wrong[0][0]:.0f} and {wrong[0][1]:.0f}, rank 1 has {wrong[1][0]:.0f} and {wrong[1][1]:.0f}, without an error",
        holds={
            "in one order the sums are right": right == [(3.0, 30.0), (3.0, 30.0)],
            "in two orders each loss is added to a count": wrong == [(21.0, 12.0), (12.0, 21.0)],
        },
    )


def _told(ranks: list[tuple[float, float]]) -> dict[str, float]:
    return {"sum of losses on rank 0": ranks[0][0], "sum of losses on rank 1": ranks[1][0]}


def _sums(rank: int, world: int, *, swapped: bool) -> tuple[float, float]:
    loss, count = torch.tensor(1.0 + rank), torch.tensor(10.0 + 10 * rank)
    order = [count, loss] if swapped and rank == 1 else [loss, count]
    for value in order:
        dist.all_reduce(value)
    return float(loss), float(count)
