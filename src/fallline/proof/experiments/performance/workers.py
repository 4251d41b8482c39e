"""What DataLoader's workers hold, and where."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from fallline.proof.experiment import Measured, experiment

BATCH = 8


class _Counting(Sampler[list[int]]):
    """Gives batches of indices, and counts how many were asked for. It runs in the training process, so nothing here depends on speed."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, 512, BATCH):
            self.asked += 1
            yield list(range(start, start + BATCH))


def _first(workers: int) -> tuple[bool, int]:
    """Whether the first batch lies in shared memory, and how many batches were ordered before it was used."""
    sampler = _Counting()
    dataset = TensorDataset(torch.zeros(512, 4))
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    batches = iter(loader)
    ordered = sampler.asked
    (batch,) = next(batches)
    return batch.is_shared(), ordered


@experiment(
    "worker-batches-wait-in-shared-memory",
    claim="A batch from a worker lies in shared memory, and two for each worker are ordered in advance: what must fit is workers x 2 x the bytes of a batch. Without workers nothing is shared.",
)
def worker_batches_wait_in_shared_memory() -> Measured:
    alone, two = _first(0), _first(2)
    return Measured(
        sides={
            "num_workers=0": {"in shared memory": alone[0], "batches ordered in advance": alone[1]},
            "num_workers=2": {"in shared memory": two[0], "batches ordered in advance": two[1]},
        },
        conclusion=f"with 2 workers the batch lies in shared memory and {two[1]} batches are ordered before the first is used; without workers {alone[1]} are, and nothing is shared",
        holds={
            "workers share": two[0],
            "two batches for each worker": two[1] == 4,
            "without workers nothing is shared": alone == (False, 0),
        },
    )
