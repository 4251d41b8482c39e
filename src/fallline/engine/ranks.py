"""Distributed training that also runs alone: one context, the same script on one process, on CPUs and on GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fallline.engine.order import Order, Seeded, Share
from fallline.engine.saving import SAVER
from fallline.engine.seeds import Seeds, seed_everything

__all__ = ["Ranks", "distributed"]


@dataclass(frozen=True)
class Ranks:
    """Who this process is among the others, and the few things that differ for it."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    seeds: Seeds | None = None

    @property
    def is_main(self) -> bool:
        """The one that prints and evaluates."""
        return self.rank == 0

    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """The model on this rank's device, in DDP when there are several ranks. Build the optimizer before or after, as you like."""
        model = model.to(self.device)
        if self.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
            return model
        if self.device.type == "cuda":
            options.setdefault("device_ids", [self.device.index])
        return DistributedDataParallel(model, **options)

    def loader(
        self, dataset: Dataset[Any], *, batch_size: int = 1, shuffle: bool = True, **options: Any
    ) -> DataLoader[Any]:
        """A DataLoader of this rank's share, in an order that does not depend on the number of ranks or workers.

        A run can be resumed on another number of ranks and continues with exactly the samples it has not seen. Random augmentations in
        worker processes depend on the sample and the epoch alone.
        """
        if "sampler" in options or "batch_sampler" in options:
            return DataLoader(dataset, batch_size=batch_size, **options)
        here = {"rank": self.rank, "world_size": self.world_size}
        if isinstance(dataset, IterableDataset):
            # Only one that says that it can begin anywhere: others may divide themselves among ranks and workers already.
            if hasattr(dataset, "iter_from"):
                dataset = Share(dataset, batch_size, **here)
            return DataLoader(dataset, batch_size=batch_size, **options)
        seed = 0 if self.seeds is None else self.seeds.seed - self.rank
        drop_last = options.pop("drop_last", False)
        size = len(dataset)  # type: ignore[arg-type]
        order = Order(size, batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last, **here)
        if options.get("num_workers", 0) > 0:
            dataset, order.numbered = Seeded(dataset, seed), True
        return DataLoader(dataset, batch_sampler=order, **options)


@contextmanager
def distributed(
    seed: int | None = None, *, deterministic: bool = False, timeout: float = 600.0
) -> Iterator[Ranks]:
    """What torchrun's environment says, made ready: process group, device, seed. Alone, it is one rank and nothing is started.

        with fallline.distributed(seed=0) as ranks:
            model = ranks.wrap(Model())
            loader = ranks.loader(dataset, batch_size=32)

    Teardown waits for nobody: a rank that failed must not leave the others in a barrier.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    started = world_size > 1 and not dist.is_initialized()
    if started:
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(
            backend, timeout=timedelta(seconds=timeout), device_id=device if on_gpu else None
        )
    seeds = None if seed is None else seed_everything(seed, deterministic=deterministic, rank=rank)
    yield Ranks(rank, world_size, local_rank, device, seeds)
    # Not in a `finally`: after an error it could wait for ranks that never come. The process ends, and torchrun stops the others.
    if started:
        SAVER.finish()  # a checkpoint that is being written still talks to the other ranks
        dist.destroy_process_group()
