"""Other random numbers for the same experiment: every seed it sets is moved by the same amount.

One seed can be lucky. An experiment writes the seeds that it likes, and `fallline prove --seed N` shows whether its claim
holds with others, without the experiment knowing of it.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

__all__ = ["move_seeds", "moved_by", "seed_everything"]

_by = 0


def moved_by() -> int:
    """By how much the seeds of this process are moved; its ranks have theirs moved as far."""
    return _by


def move_seeds(by: int) -> None:
    """From now on a seed s is s + by in this process, for torch, numpy and Python; once, also where a rank was forked from
    an experiment that had moved them."""
    global _by
    if by == _by:
        return
    assert _by == 0, "seeds can be moved once"
    _by = by
    import torch

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> Generator:
            super().manual_seed(seed + by)
            return self

    # torch's own types have no room for another function: samplers and experiments look it up by name when they need one
    torch.Generator = Generator  # type: ignore[misc]
    for home, name in [(torch, "manual_seed"), (random, "seed"), *_of_numpy()]:
        _move(home, name, by)


def _of_numpy() -> list[tuple[Any, str]]:
    with suppress(ModuleNotFoundError):
        import numpy

        return [(numpy.random, "seed"), (numpy.random, "default_rng")]
    return []


def _move(home: Any, name: str, by: int) -> None:
    plain = getattr(home, name)

    def moved(seed: Any = None, *more: Any, **named: Any) -> Any:
        return plain(seed + by if isinstance(seed, int) else seed, *more, **named)

    setattr(home, name, moved)


def seed_everything() -> None:
    """What every experiment begins with."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    with suppress(ModuleNotFoundError):
        import numpy

        numpy.random.seed(0)
