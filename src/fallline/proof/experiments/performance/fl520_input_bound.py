"""FL520: most of the time between two updates is spent waiting for data."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment

UPDATES, BATCH = 10, 4
READ, STEP = 0.004, 0.004  # seconds: a sample from storage, an update on a device


@experiment(
    "FL520",
    claim="In an input-bound run a device twice as fast saves little; reading the data twice as fast saves nearly half.",
)
def input_bound() -> Measured:
    slow = _train(READ, STEP)
    fast_device, fast_data = _train(READ, STEP / 2), _train(READ / 2, STEP)
    cached = _train(0, STEP)
    from_device = 1 - fast_device.update / slow.update
    from_data = 1 - fast_data.update / slow.update
    return Measured(
        sides={
            "wrong": {
                "share of an update spent waiting": slow.waiting,
                "time saved by a device twice as fast": from_device,
                "time saved by reading twice as fast": from_data,
            },
            "right": {"share of an update spent waiting": cached.waiting},
        },
        conclusion=f"where {round(slow.waiting, 1):.0%} of an update is waiting, a device twice as fast saves about "
        f"{round(from_device, 1):.0%} of the time and reading twice as fast {round(from_data, 1):.0%}; with cached data hardly "
        "anything is waiting",
        holds={
            "more than half of the time is waiting": slow.waiting > 0.5,
            "with cached data less than a quarter is": cached.waiting < 0.25,
            "a faster device saves less than a fifth": from_device < 0.2,
            "faster reading saves more": from_data > from_device,
        },
        curves={"wrong": slow.waits, "right": cached.waits},
        axes=("update", "milliseconds waited for data"),
    )


class _Stored(Dataset[Tensor]):
    def __init__(self, read: float) -> None:
        self.read = read

    def __len__(self) -> int:
        return UPDATES * BATCH

    def __getitem__(self, index: int) -> Tensor:
        if self.read:
            time.sleep(self.read)
        return torch.full((8,), float(index))


class _train:
    """A loader that reads in this process. The fastest update counts: other programs can only slow one down."""

    def __init__(self, read: float, step: float) -> None:
        batches = iter(DataLoader(_Stored(read), batch_size=BATCH))
        self.waits, updates = [], []
        for _ in range(UPDATES):
            start = time.perf_counter()
            next(batches)
            self.waits.append(1000 * (time.perf_counter() - start))
            time.sleep(step)  # the device computes
            updates.append(1000 * (time.perf_counter() - start))
        self.update = min(updates)
        self.waiting = min(self.waits) / self.update
