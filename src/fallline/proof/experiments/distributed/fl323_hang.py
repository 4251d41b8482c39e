"""FL323: a collective that one of two ranks does not join."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks

LIMIT = timedelta(seconds=1)


@experiment(
    "FL323",
    claim="A rank whose neighbour does not join a collective waits until the timeout; the error is raised where it waited and does not say who did not come.",
)
def hang() -> Measured:
    wrong, right = (on_ranks(partial(_meet, joins=joins)) for joins in (False, True))
    short = re.sub(r"^.*\] *", "", wrong[0])
    return Measured(
        sides={
            "wrong": {"rank 0, which calls it": short, "rank 1": wrong[1]},
            "right": {"rank 0, which calls it": right[0], "rank 1": right[1]},
        },
        conclusion=f"rank 1 does not join: rank 0 says “{short}”, and rank 1 has {wrong[1]}; the limit was {LIMIT.total_seconds():.0f} s, by default it is minutes",
        holds={
            "the rank that waits raises": "timed out" in short.lower(),
            "the missing rank is not named": "rank" not in short.lower(),
            "the missing rank raises nothing": wrong[1] == "no error",
            "with all ranks nothing raises": right == ["no error", "no error"],
        },
    )


def _meet(rank: int, world: int, *, joins: bool) -> str:
    group = dist.new_group(timeout=LIMIT)  # one of its own: a group is of no use after a timeout
    if rank == 0 or joins:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return "no error"
