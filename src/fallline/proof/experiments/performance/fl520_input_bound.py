"""FL520: most of the time between two updates is spent waiting for data."""

from __future__ import annotations

import time
import zlib

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fallline.proof.experiment import Measured, experiment

UPDATES, BATCH = 8, 4
READ, STEP = 40, 10  # pieces of work: decoding a batch, computing an update
PACKED = zlib.compress(bytes(range(256)) * 4096)


@experiment(
    "FL520",
    claim="In an input-bound run a device twice as fast saves little; reading the data twice as fast saves far more.",
)
def input_bound() -> Measured:
    slow, cached = _Training(READ, STEP), _Training(0, STEP)
    fast_device, fast_data = _Training(READ, STEP // 2), _Training(READ // 2, STEP)
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
        conclusion=f"where reading is {READ / STEP:.0f} times the work of a step, a device twice as fast saves less than a quarter of the time, "
        "reading twice as fast more than a quarter; with cached data hardly anything is waiting",
        holds={
            "more than half of the time is waiting": slow.waiting > 0.5,
            "with cached data less than a quarter is": cached.waiting < 0.25,
            "a faster device saves less than a quarter": from_device < 0.25,
            "faster reading saves more than a quarter": from_data > 0.25,
        },
        curves={"wrong": slow.waits, "right": cached.waits},
        axes=("update", "milliseconds waited for data"),
    )


class _Packed(Dataset[Tensor]):
    """Samples that have to be decoded, a batch at a time."""

    def __init__(self, read: int) -> None:
        self.read = read

    def __len__(self) -> int:
        return UPDATES * BATCH

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        _work(self.read)
        return [torch.full((8,), float(index)) for index in indices]


def _work(pieces: int) -> None:
    for _ in range(pieces):
        zlib.decompress(PACKED)


class _Training:
    """A loader that reads in this process. Time is time on the processor, which other programs do not add to; the fastest update counts."""

    def __init__(self, read: int, step: int) -> None:
        self.batches = iter(DataLoader(_Packed(read), batch_size=BATCH))
        self.step = step
        self.waits: list[float] = []
        self.times: list[float] = []

    def update(self) -> None:
        start = time.process_time()
        next(self.batches)
        self.waits.append(1000 * (time.process_time() - start))
        _work(self.step)
        self.times.append(time.process_time() - start)

    @property
    def seconds(self) -> float:
        return min(self.times)

    @property
    def waiting(self) -> float:
        return min(self.waits) / (1000 * self.seconds)
