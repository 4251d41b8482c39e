"""FL324: a rank is killed while the other waits for it."""

from __future__ import annotations

import os
import re
import signal
from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks


@experiment(
    "FL324",
    claim="A rank that is killed says nothing; the other raises an error about a connection, which does not say why the first one ended.",
)
def rank_died() -> Measured:
    (wrong,) = on_ranks(partial(_meet, killed=True), dies=1)
    right, _ = on_ranks(partial(_meet, killed=False))
    # without file, address and what it guesses
    short = (
        re.sub(r"^.*?\] *|\[[^\]]*\]:\d+", "", wrong).partition(". ")[0].replace(" :", ":").strip()
    )
    name = "rank 0, which goes on"
    return Measured(
        sides={"wrong": {name: short}, "right": {name: right}},
        conclusion=f"rank 1 is killed with signal {signal.SIGKILL:d}: rank 0 says “{short}”",
        holds={
            "the error is about a connection": "connection" in short.lower(),
            "it does not say that a rank was killed": "kill" not in short.lower(),
            "with both alive nothing raises": right == "no error",
        },
    )


def _meet(rank: int, world: int, *, killed: bool) -> str:
    try:
        dist.barrier()  # both are connected
        if rank == 1 and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"
