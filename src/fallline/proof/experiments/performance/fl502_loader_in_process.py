"""FL502: a DataLoader without workers over samples that take time to read."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment
from fallline.proof.processes import with_torch

BATCHES, BATCH = 10, 4
READ, STEP = 0.003, 0.015  # seconds: a sample from storage, an update on a device
WORKERS, AHEAD = 2, 2  # and how many batches each of them reads ahead, torch's default
PATIENCE = 30.0  # seconds that a busy machine may take to read four batches


@experiment(
    "FL502",
    claim="Without workers every sample is read in the training process, between two steps, and every batch is waited "
    "for; two workers read while the step runs.",
)
def loader_in_process() -> Measured:
    wrong, right = _train(workers=0), _train(workers=WORKERS)
    later = BATCHES - 1  # the first one is waited for either way
    return Measured(
        sides={
            "wrong": {
                "samples read by the training process": wrong.own_samples,
                "batches that are there when a step ends": wrong.ready,
                "milliseconds waited for a batch": wrong.waited,
            },
            "right": {
                "samples read by the training process": right.own_samples,
                "batches that are there when a step ends": right.ready,
                "milliseconds waited for a batch": right.waited,
            },
        },
        conclusion=f"with num_workers=0 the training process reads {wrong.own_samples} of {BATCHES * BATCH} samples itself, and when a step ends {wrong.ready} of the next {later} batches are "
        f"there; with {WORKERS} workers it reads {right.own_samples}, and {right.ready} are",
        holds={
            "without workers all samples are read in the training process": wrong.own_samples
            == BATCHES * BATCH,
            "with workers none is": right.own_samples == 0,
            "without workers every batch is waited for": min(wrong.waits) >= 900 * BATCH * READ,
            "and nothing is read while a step runs": wrong.ready == 0,
            "with workers the next batch is read while a step runs": right.ready == later,
        },
        curves={"wrong": wrong.waits, "right": right.waits},
        axes=("batch", "milliseconds waited"),
        positions=range(1, BATCHES),
    )


class _Stored(Dataset[tuple[Tensor, int]]):
    """Samples behind a slow disk; each says which process read it, and everybody sees which ones are read."""

    def __init__(self) -> None:
        self.read = torch.zeros(BATCHES * BATCH, dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(READ)
        self.read[index] = True
        return torch.full((8,), float(index)), os.getpid()


class _train:
    def __init__(self, *, workers: int) -> None:
        stored = _Stored()
        context = with_torch() if workers else None  # which has torch already
        loader = DataLoader(
            stored, batch_size=BATCH, num_workers=workers, multiprocessing_context=context
        )
        batches = iter(loader)
        self.own_samples = self.ready = 0
        self.waits: list[float] = []
        for number in range(BATCHES):
            self.ready += bool(number and stored.read[: (number + 1) * BATCH].all())
            start = time.perf_counter()
            _, readers = next(batches)
            self.waits.append(1000 * (time.perf_counter() - start))
            self.own_samples += int((readers == os.getpid()).sum())
            ahead = stored.read[: (number + 1 + workers * AHEAD) * BATCH]
            self._step(until_read=ahead if workers else None)
        del self.waits[0]  # workers start while it is waited for
        self.waited = sorted(self.waits)[BATCHES // 2]

    def _step(self, until_read: Tensor | None) -> None:
        """The device computes. With workers for as long as they need to read what they may, so that no other program on this
        machine decides; without them no time would be enough."""
        if until_read is None:
            time.sleep(STEP)
            return
        end = time.monotonic() + PATIENCE
        while not until_read.all() and time.monotonic() < end:
            time.sleep(0.001)
