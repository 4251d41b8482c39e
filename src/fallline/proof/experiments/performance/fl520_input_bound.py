"""FL520: most of the time between two updates is spent waiting for data."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment

UPDATES, BATCH = 8, 4
READ, STEP = 0.04, 0.01  # seconds: a batch from storage, an update on a device


@experiment(
    "FL520",
    claim="In an input-bound run a device twice as fast saves little; reading the data twice as fast saves far more.",
)
def input_bound() -> Measured:
    slow, cached = _Training(READ, STEP), _Training(0, STEP)
    fast_device, fast_data = _Training(READ, STEP / 2), _Training(READ / 2, STEP)
    for _ in range(UPDATES):  # in turn, so that a busy moment of this machine hits all of them
        for training in (slow, cached, fast_device, fast_data):
            training.update()
    from_device = 1 - fast_device.seconds / slow.seconds
    from_data = 1 - fast_data.seconds / slow.seconds
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
        f"{max(0.0, round(from_device, 1)):.0%} of the time and reading twice as fast {round(from_data, 1):.0%}; with cached data hardly "
        "anything is waiting",
        holds={
            "more than half of the time is waiting": slow.waiting > 0.5,
            "with cached data less than half is": cached.waiting < 0.5,
            "a faster device saves less than a quarter": from_device < 0.25,
            "faster reading saves more": from_data > from_device,
        },
        curves={"wrong": slow.waits, "right": cached.waits},
        axes=("update", "milliseconds waited for data"),
    )


class _Stored(Dataset[Tensor]):
    """Samples that come from storage a batch at a time."""

    def __init__(self, read: float) -> None:
        self.read = read

    def __len__(self) -> int:
        return UPDATES * BATCH

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        if self.read:
            time.sleep(self.read)
        return [torch.full((8,), float(index)) for index in indices]


class _Training:
    """A loader that reads in this process. The fastest update counts: other programs can only slow one down."""

    def __init__(self, read: float, step: float) -> None:
        self.batches = iter(DataLoader(_Stored(read), batch_size=BATCH))
        self.step = step
        self.waits: list[float] = []
        self.times: list[float] = []

    def update(self) -> None:
        start = time.perf_counter()
        next(self.batches)
        self.waits.append(1000 * (time.perf_counter() - start))
        time.sleep(self.step)  # the device computes
        self.times.append(time.perf_counter() - start)

    @property
    def seconds(self) -> float:
        return min(self.times)

    @property
    def waiting(self) -> float:
        return min(self.waits) / (1000 * self.seconds)
