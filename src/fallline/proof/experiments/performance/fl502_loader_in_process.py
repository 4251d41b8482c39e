"""FL502: a DataLoader without workers over samples that take time to read."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment

BATCHES, BATCH = 14, 4
SKIPPED = 4  # batches: workers start while the first ones are waited for
READ, STEP = 0.003, 0.015  # seconds: a sample from storage, an update on a device


@experiment(
    "FL502",
    claim="Without workers every sample is read in the training process, between two steps, and every batch is waited "
    "for; two workers read while the step runs.",
)
def loader_in_process() -> Measured:
    wrong, right = _train(workers=0), _train(workers=2)
    return Measured(
        sides={
            "wrong": {
                "samples read by the training process": wrong.own_samples,
                "milliseconds waited for a batch": wrong.waited,
            },
            "right": {
                "samples read by the training process": right.own_samples,
                "milliseconds waited for a batch": right.waited,
            },
        },
        conclusion=f"with num_workers=0 the training process reads {wrong.own_samples} of {BATCHES * BATCH} samples itself, with 2 "
        f"workers {right.own_samples}, and most of the wait for a batch is gone",
        holds={
            "without workers all samples are read in the training process": wrong.own_samples
            == BATCHES * BATCH,
            "with workers none is": right.own_samples == 0,
            "without workers every batch is waited for": min(wrong.waits) >= 900 * BATCH * READ,
            "with workers less than half as long": right.waited < wrong.waited / 2,
        },
        curves={"wrong": wrong.waits, "right": right.waits},
        axes=("batch", "milliseconds waited"),
    )


class _Stored(Dataset[tuple[Tensor, int]]):
    """Samples behind a slow disk; each says which process read it."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(READ)
        return torch.full((8,), float(index)), os.getpid()


class _train:
    def __init__(self, *, workers: int) -> None:
        batches = iter(DataLoader(_Stored(), batch_size=BATCH, num_workers=workers))
        self.own_samples = 0
        waits = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            _, readers = next(batches)
            waits.append(1000 * (time.perf_counter() - start))
            self.own_samples += int((readers == os.getpid()).sum())
            time.sleep(STEP)  # the device computes
        self.waits = waits[SKIPPED:]
        self.waited = sorted(self.waits)[len(self.waits) // 2]
