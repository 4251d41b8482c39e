"""Seeds: one number for every source of randomness, and what determinism costs."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fallline.errors import EngineError

__all__ = ["Seeds", "seed_everything", "seed_worker"]

COST = (
    "deterministic=True: torch uses only algorithms that give the same bits every time. Some are slower (scatter, index_add and "
    "convolution backward on CUDA; cuDNN no longer searches for the fastest), operations without such an algorithm raise, and "
    "CUBLAS_WORKSPACE_CONFIG has to be set before the first use of cuBLAS. Bits are the same on one machine and one version of torch, "
    "not between GPU models or versions"
)


@dataclass(frozen=True)
class Seeds:
    """What was seeded. Hand `generator` and `worker_init_fn` to a DataLoader, so that its order does not depend on the model's draws."""

    seed: int
    deterministic: bool

    @property
    def generator(self) -> torch.Generator:
        """A new generator of the same seed, for a DataLoader or a sampler."""
        return torch.Generator().manual_seed(self.seed)

    @property
    def cost(self) -> str:
        return COST if self.deterministic else "nothing: seeding alone does not slow anything down"

    @property
    def worker_init_fn(self) -> Callable[[int], None]:
        return seed_worker


def seed_everything(seed: int, *, deterministic: bool = False, rank: int = 0) -> Seeds:
    """Seed python, numpy (where it is installed), torch and every device.

    Each rank gets seed + rank: dropout and augmentation must differ between ranks, and DDP broadcasts rank 0's parameters anyway.
    With `deterministic=True` the same bits come out every time, at a cost that is logged and in `Seeds.cost`.
    """
    if not isinstance(seed, int) or not 0 <= seed + rank < 2**32:
        raise EngineError(
            f"seed={seed!r}: give a whole number from 0 to 2**32 - 1, the range that numpy takes"
        )
    seed += rank
    random.seed(seed)
    torch.manual_seed(seed)  # every device too
    _seed_numpy(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
        logging.getLogger("fallline").warning(COST)
    return Seeds(seed, deterministic)


def seed_worker(worker: int) -> None:
    """For `DataLoader(worker_init_fn=...)`: numpy and python follow torch's seed of this worker, on any version of torch."""
    seed = torch.initial_seed() % 2**32
    random.seed(seed)
    _seed_numpy(seed)


def _seed_numpy(seed: int) -> None:
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed)
