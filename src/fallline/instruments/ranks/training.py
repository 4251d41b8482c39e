"""What one rank sees of its own script: seeds, samples, parameters after every update, and time with and without synchronisation.

After some updates as ever, DDP is told not to synchronise any more: the difference in time is what communication really costs, with all
that is hidden behind computing left out. Parameters then go apart, so they are compared before, and the script is ended.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fallline.instruments.frame import Progress
from fallline.instruments.ranks.parameters import prints
from fallline.instruments.same.fingerprint import fingerprint, resolve, together
from fallline.instruments.script import Observer, Ran, Script, run_until
from fallline.replay.tensors import tensors_in

__all__ = ["Training", "train"]

MOST_SAMPLES = 50_000


class Training(Observer):
    """One rank's script."""

    def __init__(self, updates: int) -> None:
        self.warm = max(1, updates // 5)
        self.synchronised = max(1, (updates - self.warm) // 2)
        self.alone = max(1, updates - self.warm - self.synchronised)
        self.seeds: dict[str, int] = {}
        self.samples: list[Any] = []  # of the first epoch of the first loader
        self.reads: tuple[int, int] | None = (
            None  # samples in an epoch of this rank, and in the dataset
        )
        self.repeats: bool | None = None  # the second epoch has the order of the first
        self.prints: list[dict[str, int]] = []  # after each update that synchronises
        self.seconds: dict[str, list[float]] = {"synchronised": [], "alone": []}
        self.own: list[
            float
        ] = []  # from the end of an update to its backward: before ranks wait for each other
        self.backwards = 0
        self.synchronising = 0
        self.overridden = False
        self._models: list[nn.Module] = []
        self._done = 0
        self._began = 0.0
        self._before: float | None = None
        self._loader: Any = None
        self._epoch = -1
        self._again: list[Any] = []

    @property
    def total(self) -> int:
        return self.warm + self.synchronised + self.alone

    @property
    def window(self) -> str:
        if self._done < self.warm:
            return ""
        return "synchronised" if self._done < self.warm + self.synchronised else "alone"

    @property
    def ddp(self) -> list[DistributedDataParallel]:
        found = {
            id(m): m
            for model in self._models
            for m in model.modules()
            if isinstance(m, DistributedDataParallel)
        }
        return list(found.values())

    # -- data ----------------------------------------------------------------------------------------------------

    def epoch_begins(self, loader: Any) -> None:
        if self._loader is None:
            self._loader = loader
            self.reads = _lengths(loader)
        if loader is self._loader:
            self._epoch += 1

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        """Where a dataset has no indices, a batch is known by its bits."""
        dataset = getattr(self._loader, "dataset", None)
        if getattr(iterator, "_dataset", None) is not dataset:
            return  # another loader's, for validation
        if self._epoch == 0 and isinstance(dataset, torch.utils.data.IterableDataset):
            self._sample(str(resolve([together(fingerprint(t) for t in tensors_in(batch))])[0]))

    def _sample(self, index: Any) -> None:
        if self._epoch == 0 and len(self.samples) < MOST_SAMPLES:
            self.samples.append(index)
        elif self._epoch == 1 and len(self._again) < len(self.samples):
            self._again.append(index)
            # two epochs of one sampler with the same beginning have the same order; a short one could by chance
            if len(self._again) == min(16, len(self.samples)):
                self.repeats = (
                    self._again == self.samples[: len(self._again)] and len(self._again) > 3
                )

    def indices_taken(self, iterator: Any, indices: Any) -> None:
        """Indices are taken where the loader takes them: asking its sampler would draw random numbers."""
        if getattr(iterator, "_dataset", None) is getattr(self._loader, "dataset", object()):
            for index in indices if isinstance(indices, list | tuple) else [indices]:
                if isinstance(index, int):
                    self._sample(index)

    # -- the loop ------------------------------------------------------------------------------------------------

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and not any(model is known for known in self._models):
            self._models.append(model)
        if not self.seeds:
            self.seeds = _seeds()
        if self.window == "alone":
            for wrapper in self.ddp:
                wrapper.require_backward_grad_sync = False

    def backward_begins(self, loss: Any) -> None:
        if self._before is not None and self.window == "synchronised":
            self.own.append(time.perf_counter() - self._before)
        self._before = None
        synchronises = any(wrapper.require_backward_grad_sync for wrapper in self.ddp)
        if self.window == "synchronised":
            self.backwards += 1
            self.synchronising += synchronises
        elif self.window == "alone" and synchronises:
            self.overridden = True

    def update_ends(self, number: int) -> None:
        now = time.perf_counter()
        window = self.window
        if window:
            self.seconds[window].append(now - self._began)
        if window != "alone":
            found: dict[str, int] = {}
            for model in self._models:
                found |= prints(model)
            self.prints.append(found)
        self._done = number
        if self.window != window:
            _wait()
        self._began = self._before = time.perf_counter()

    def per_update(self, window: str) -> float | None:
        found = self.seconds[window]
        if not found:
            return None
        # a device runs behind: only the whole window is known
        return sum(found) / len(found) if torch.cuda.is_available() else median(found)

    def to_json(self, ran: Ran) -> dict[str, Any]:
        return {
            "updates": ran.updates,
            "partial": ran.partial,
            "status": 130 if ran.interrupted else ran.status,
            "ddp": bool(self.ddp),
            "seeds": self.seeds,
            "samples": self.samples,
            "reads": self.reads,
            "repeats": self.repeats,
            "prints": self.prints,
            "synchronised": self.per_update("synchronised"),
            "alone": None if self.overridden else self.per_update("alone"),
            "own": median(self.own) if self.own else None,
            "backwards": self.backwards,
            "synchronising": self.synchronising,
            "measured": len(self.seconds["synchronised"]),
        }


def _lengths(loader: Any) -> tuple[int, int] | None:
    """How many samples this rank reads in an epoch, and how many there are; None where that is not known."""
    sampler = loader.sampler
    if loader.batch_size is None:  # a batch sampler of its own: the loader's sampler is not used
        sampler = getattr(loader.batch_sampler, "sampler", None)
    try:
        return len(sampler), len(loader.dataset)
    except TypeError:
        return None


def _seeds() -> dict[str, int]:
    """Where the generators stand at the first forward pass."""
    found = {
        "torch seed": torch.initial_seed(),
        "torch": zlib.crc32(bytes(torch.get_rng_state().tolist())),
        "python": zlib.crc32(repr(random.getstate()[1]).encode()),
    }
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = zlib.crc32(numpy.random.get_state(legacy=False)["state"]["key"].tobytes())
    return found


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def train(
    target: Script | Callable[[], object], updates: int, progress: Progress | None
) -> dict[str, Any]:
    """Run the script on this rank; what it saw."""
    training = Training(updates)
    ran = run_until(
        target,
        training,
        updates=training.total,
        progress=progress,
    )
    return training.to_json(ran)
