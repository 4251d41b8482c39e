"""What a checkpoint's file may hold, and where in the data it continues."""

from __future__ import annotations

import argparse
import contextlib
import io
from functools import partial

import torch
from torch.utils.data import DataLoader, RandomSampler

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "safe-globals-name-the-class",
    claim="torch.load refuses a file with a class that it does not know, and names it; safe_globals with that class loads it without weights_only=False, which would run any code in the file.",
)
def safe_globals_name_the_class() -> Measured:
    file = io.BytesIO()
    torch.save({"args": argparse.Namespace(lr=0.1), "weight": torch.ones(2)}, file)
    refused, allowed = (error_of(partial(_load, file, allow)) for allow in (False, True))
    return Measured(
        sides={"as it is": {"raises": refused}, "with safe_globals": {"raises": allowed}},
        conclusion=f"a Namespace beside the weights: torch.load raises {refused}; within safe_globals([Namespace]) it raises {allowed}",
        holds={"refused": refused == "UnpicklingError", "allowed by name": allowed == "none"},
    )


def _load(file: io.BytesIO, allow: bool) -> None:
    file.seek(0)
    known = torch.serialization.safe_globals([argparse.Namespace]) if allow else contextlib.nullcontext()  # fmt: skip
    with known:
        torch.load(file)


@experiment(
    "a-resumed-epoch-starts-over",
    claim="A DataLoader that is built again starts its epoch over: samples are seen twice and others not at all, unless the order's seed and the position are restored.",
)
def a_resumed_epoch_starts_over() -> Measured:
    before, rest = _order(0)[:40], _order(0)[40:]
    plain = _order(1)[: len(rest)]  # stopped after 40 of 100, started again, no state
    seen_twice = len(set(before) & set(plain))
    missed = 100 - len(set(before) | set(plain))
    again = _order(0)[len(before) :]  # the seed of the epoch and the number of samples were kept
    exact = again == rest
    return Measured(
        sides={
            "built again": {"samples seen twice": seen_twice, "samples never seen": missed},
            "seed and position restored": {"samples seen twice": len(set(before) & set(again)), "samples never seen": 100 - len(set(before) | set(again))},
        },
        conclusion=f"stopped after 40 of 100 samples and built again, {seen_twice} samples come twice and {missed} never; with seed and position restored the order continues {'exactly' if exact else 'differently'}",
        holds={"samples repeat": seen_twice > 10, "and are missed": missed == seen_twice, "restored it is exact": exact},
    )  # fmt: skip


def _order(seed: int) -> list[int]:
    sampler = RandomSampler(range(100), generator=torch.Generator().manual_seed(seed))
    return [int(i) for batch in DataLoader(range(100), batch_size=4, sampler=sampler) for i in batch]  # type: ignore[arg-type]  # fmt: skip
