"""What another number of workers, or pinned memory, does for this dataset: tried with its own batches, not guessed.

Between two batches the trial takes as long as an update does without waiting for data, so that what is measured is the wait that
training would see. Random numbers are drawn from generators of our own and every other source is put back.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fallline.engine import rng
from fallline.instruments.frame import Progress
from fallline.replay.tensors import tensors_in

__all__ = ["Loading", "Trial", "try_loader"]

_BATCHES = 12  # per trial, after those that fill the queue
_PATIENCE = 30  # seconds until a worker that says nothing is given up


@dataclass
class Trial:
    """One way to load."""

    num_workers: int
    pin_memory: bool
    wait: float | None = None  # seconds per batch
    copy: float | None = None  # seconds to the device per batch; on CUDA
    problem: str = ""


@dataclass
class Loading:
    """How the script loads, and what other ways were tried."""

    num_workers: int
    pin_memory: bool
    batch_size: int | None
    tried: list[Trial] = field(default_factory=list)
    problem: str = ""
    interrupted: bool = False  # Ctrl-C: what was tried until then is here

    @property
    def now(self) -> Trial | None:
        return self._find(self.num_workers, self.pin_memory)

    @property
    def best(self) -> Trial | None:
        """The one that waits least; of those within a tenth of it, the one with the fewest workers."""
        good = [t for t in self.tried if t.wait is not None]
        if not good:
            return None
        least = min(_cost(t) for t in good)
        near = [t for t in good if _cost(t) <= 1.1 * least + 1e-4]
        return min(near, key=lambda t: (t.num_workers, t.pin_memory))

    def _find(self, workers: int, pinned: bool) -> Trial | None:
        return next(
            (t for t in self.tried if (t.num_workers, t.pin_memory) == (workers, pinned)), None
        )


def try_loader(
    loader: Any, compute: float, device: torch.device, seconds: float, progress: Progress | None
) -> Loading:
    """Try some ways to load for about `seconds`; `compute` is how long an update takes beside waiting for data."""
    found = Loading(loader.num_workers, loader.pin_memory, loader.batch_size)
    if isinstance(loader.dataset, IterableDataset):
        found.problem = "an IterableDataset cannot start over, so it is not tried"
        return found
    counts = _counts(loader)
    state = rng.capture()
    until = time.monotonic() + seconds

    def tried(trial: Trial) -> None:
        if time.monotonic() < until or not found.tried:
            if progress is not None:
                progress.advance(len(found.tried), f"trying {trial.num_workers} workers")
            _try(loader, trial, compute, device, seconds / (len(counts) + 1))
            found.tried.append(trial)

    try:
        for count in counts:
            tried(Trial(count, loader.pin_memory))
        best = found.best
        if device.type == "cuda" and best is not None:
            tried(Trial(best.num_workers, not loader.pin_memory))
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        rng.restore(state)
    return found


def _counts(loader: Any) -> list[int]:
    """Numbers of workers up to twice the cores, since those that read sleep: as it is first, then those that most often help."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    others = [n for n in (4, 8, 2, 16, 1, 0) if n <= 2 * (cores or 1)]
    return list(dict.fromkeys([loader.num_workers, *others]))


def _try(loader: Any, trial: Trial, compute: float, device: torch.device, seconds: float) -> None:
    iterator: Any = None
    try:
        iterator = iter(_like(loader, trial))
        # the first batches of the workers come at once or late, as they started
        for _ in range(1 + 2 * trial.num_workers):
            next(iterator)
        waits: list[float] = []
        copies: list[float] = []
        until = time.monotonic() + seconds
        while len(waits) < _BATCHES and (len(waits) < 3 or time.monotonic() < until):
            begun = time.perf_counter()
            batch = next(iterator)
            waits.append(time.perf_counter() - begun)
            if device.type == "cuda":
                copies.append(_copy(batch, device, trial.pin_memory))
            _pass_time(compute, device)
        trial.wait = sum(waits) / len(waits)
        trial.copy = sum(copies) / len(copies) if copies else None
    except Exception as error:  # a dataset that cannot go to a worker, or ends
        trial.problem = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    finally:
        shut = getattr(iterator, "_shutdown_workers", None)
        if shut is not None:
            shut()


def _like(loader: Any, trial: Trial) -> DataLoader[Any]:
    """The same dataset and batches, loaded in another way, in an order of its own."""
    generator = torch.Generator()
    generator.manual_seed(0)
    batch = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    with warnings.catch_warnings():  # torch would say that there are fewer cores than workers
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return _made(loader, trial, batch, generator)


def _made(
    loader: Any, trial: Trial, batch: int | None, generator: torch.Generator
) -> DataLoader[Any]:
    return DataLoader(
        loader.dataset,
        batch_size=batch,
        sampler=_Around(len(loader.dataset)),
        num_workers=trial.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=trial.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if trial.num_workers else None,
        timeout=_PATIENCE if trial.num_workers else 0,
        generator=generator,
        prefetch_factor=(loader.prefetch_factor or 2) if trial.num_workers else None,
    )


class _Around(torch.utils.data.Sampler[int]):
    """Every sample, in an order that jumps as a shuffled one does, again and again."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        step = max(1, int(self.size * 0.618)) | 1
        at = 0
        while True:
            yield at
            at = (at + step) % self.size


def _pass_time(seconds: float, device: torch.device) -> None:
    """As an update would: on a device the host sleeps meanwhile, on the CPU it works."""
    if device.type != "cpu":
        time.sleep(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _copy(batch: Any, device: torch.device, pinned: bool) -> float:
    """How long the host is busy with copying it to the device, which is idle then."""
    begun = time.perf_counter()
    for tensor in tensors_in(batch):
        tensor.to(device, non_blocking=pinned)
    passed = time.perf_counter() - begun
    torch.cuda.synchronize(device)
    return passed


def _cost(trial: Trial) -> float:
    return (trial.wait or 0.0) + (trial.copy or 0.0)
