"""FL029: the random numbers that two workers draw, from a generator made in the Dataset and from torch's own."""

from __future__ import annotations

import random

import torch
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment

SAMPLES, WORKERS = 64, 2


class _Noisy(Dataset[float]):
    def __init__(self, *, own: bool) -> None:
        self.own = own
        self.rng = random.Random(0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> float:
        return self.rng.random() if self.own else torch.rand((), dtype=torch.float64).item()


@experiment(
    "FL029",
    claim="A generator that a Dataset makes in its constructor is copied into every worker, and all of them draw the same numbers; torch's own differ by worker.",
)
def rank_blind_seed() -> Measured:
    wrong, right = _different(own=True), _different(own=False)
    return Measured(
        sides={
            "wrong": {"different numbers drawn": wrong, "samples": SAMPLES},
            "right": {"different numbers drawn": right, "samples": SAMPLES},
        },
        conclusion=f"{WORKERS} workers draw {wrong} different numbers for {SAMPLES} samples from a generator made in the Dataset, and {right} with torch's own",
        holds={
            "all workers draw the same": wrong == SAMPLES // WORKERS,
            "torch's own differ": right == SAMPLES,
        },
    )


def _different(*, own: bool) -> int:
    torch.manual_seed(0)
    loader = DataLoader(_Noisy(own=own), batch_size=8, num_workers=WORKERS)
    return len({float(n) for batch in loader for n in batch})
