"""FL304: two ranks with a plain shuffled loader, and with a `DistributedSampler`."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks

EXAMPLES, BATCH = 512, 32


@experiment(
    "FL304",
    claim="With a plain shuffled loader every rank reads all the data, and with one seed on all ranks every rank reads the same batches.",
)
def sampler_missing() -> Measured:
    wrong, right = (on_ranks(partial(_epoch, shared=shared)) for shared in (False, True))
    same_wrong, same_right = _same(wrong), _same(right)
    read_wrong, read_right = (sum(map(len, ranks[0])) for ranks in (wrong, right))
    return Measured(
        sides={
            "wrong": {
                "updates in an epoch": len(wrong[0]),
                "examples each rank reads": read_wrong,
                "batches that both ranks read, percent": same_wrong,
            },
            "right": {
                "updates in an epoch": len(right[0]),
                "examples each rank reads": read_right,
                "batches that both ranks read, percent": same_right,
            },
        },
        conclusion=f"on two ranks an epoch has {len(wrong[0])} updates and {same_wrong:.0f}% of the batches are the same on both; with a "
        f"DistributedSampler it has {len(right[0])} and {same_right:.0f}%",
        holds={
            "without a sampler each rank reads everything": read_wrong == EXAMPLES,
            "with one seed all batches are copies": same_wrong == 100,
            "with a sampler each rank reads its half": read_right == EXAMPLES // 2,
            "and no example is read twice": len(set().union(*right[0], *right[1])) == EXAMPLES,
        },
    )


def _epoch(rank: int, world: int, *, shared: bool) -> list[tuple[int, ...]]:
    """The examples of each batch of one epoch, with the same seed on every rank, as scripts set it."""
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(EXAMPLES))
    sampler: DistributedSampler[int] | None = DistributedSampler(data) if shared else None
    loader = DataLoader(data, BATCH, sampler=sampler, shuffle=sampler is None)
    return [tuple(indices.tolist()) for (indices,) in loader]


def _same(ranks: list[list[tuple[int, ...]]]) -> float:
    pairs = list(zip(*ranks, strict=True))
    copies = [1.0 for a, b in pairs if a == b]
    return 100 * sum(copies) / len(pairs)
