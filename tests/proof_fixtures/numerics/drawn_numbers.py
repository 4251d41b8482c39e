"""One number from every source of random numbers that an experiment may use."""

from __future__ import annotations

import random

import numpy
import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks


def _on_rank(rank: int, world: int) -> float:
    return torch.rand(()).item() + rank


@experiment("draws", claim="Numbers are drawn.")
def draws() -> Measured:
    drawn = {
        "as they come": torch.rand(()).item(),
        "python": random.random(),
        "numpy": float(numpy.random.rand()),
        "ranks": sum(on_ranks(_on_rank, 2)),
    }
    torch.manual_seed(3)
    drawn["seeded"] = torch.rand(()).item()
    generator = torch.Generator().manual_seed(3)
    drawn["generator"] = torch.rand((), generator=generator).item()
    drawn["numpy's generator"] = float(numpy.random.default_rng(3).random())
    return Measured(
        sides={source: {"number": number} for source, number in drawn.items()},
        conclusion=f"{len(drawn)} numbers are drawn",
        holds={"they are drawn": True},
    )
