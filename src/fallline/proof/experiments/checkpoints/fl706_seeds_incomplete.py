"""FL706: one of the three generators is not seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import numpy as np
import torch

from fallline.proof.experiment import Measured, experiment

SEEDERS: dict[str, Callable[[int], object]] = {
    "random": random.seed,
    "numpy": np.random.seed,
    "torch": torch.manual_seed,
}


@experiment(
    "FL706",
    claim="random, numpy and torch each have their own generator: leave one unseeded and two runs differ; seed all three and "
    "they repeat.",
)
def seeds_incomplete() -> Measured:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    complete = _differ(SEEDERS)
    forgotten = {name: _differ([s for s in SEEDERS if s != name]) for name in SEEDERS}
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])
    return Measured(
        sides={
            "wrong": {"results of 3 that differ": forgotten["numpy"]},
            "right": {"results of 3 that differ": complete},
            "random not seeded": {"results of 3 that differ": forgotten["random"]},
            "torch not seeded": {"results of 3 that differ": forgotten["torch"]},
        },
        conclusion="of 3 results (shuffled indices, augmented images, initial weights) "
        + ", ".join(f"{n} differs without {name}'s seed" for name, n in forgotten.items())
        + f", and {complete} with all three seeds",
        holds={
            "whatever is not seeded differs, and only that": set(forgotten.values()) == {1},
            "with three seeds nothing differs": complete == 0,
        },
    )


def _differ(seeded: Collection[str]) -> int:
    """How many results of a program differ between two runs that seed these generators with the same seed."""
    first, second = _run(seeded), _run(seeded)
    return sum(a != b for a, b in zip(first, second, strict=True))


def _run(seeded: Collection[str]) -> tuple[object, ...]:
    """Shuffles with random, augments with numpy and initialises with torch."""
    for name in seeded:
        SEEDERS[name](0)
    order = list(range(100))
    random.shuffle(order)
    noise = np.random.normal(size=8).tolist()
    weights = torch.nn.Linear(4, 4).weight.tolist()
    return order, noise, weights
