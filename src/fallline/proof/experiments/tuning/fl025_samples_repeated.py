"""FL025: how often each sample of an IterableDataset comes with several workers, divided among them and not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fallline.proof.experiment import Measured, experiment

SAMPLES, WORKERS = 64, 2


class _Numbers(IterableDataset[int]):
    def __init__(self, *, divided: bool) -> None:
        self.divided = divided

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        if worker is None or not self.divided:
            yield from range(SAMPLES)
        else:
            yield from range(worker.id, SAMPLES, worker.num_workers)


@experiment(
    "FL025",
    claim="Each worker of a loader iterates over the whole IterableDataset, so every sample is seen once per worker unless the dataset divides them.",
)
def samples_repeated() -> Measured:
    wrong, right = _counts(divided=False), _counts(divided=True)
    return Measured(
        sides={
            "wrong": {"samples in an epoch": wrong.total(), "times each": max(wrong.values())},
            "right": {"samples in an epoch": right.total(), "times each": max(right.values())},
        },
        conclusion=f"with {WORKERS} workers an epoch of {SAMPLES} samples has {wrong.total()}, each {max(wrong.values())} times; divided by get_worker_info it has {right.total()}",
        holds={
            "every sample comes once per worker": set(wrong.values()) == {WORKERS},
            "divided, each comes once": set(right.values()) == {1} and len(right) == SAMPLES,
        },
    )


def _counts(*, divided: bool) -> Counter[int]:
    loader = DataLoader(_Numbers(divided=divided), batch_size=8, num_workers=WORKERS)
    return Counter(int(n) for batch in loader for n in batch)
