"""Two ranks on this machine: what an experiment about distributed training needs.

    def _clip_norm(rank: int, world: int) -> float: ...   # a module's own function, so that it can be sent

    norms = on_ranks(_clip_norm, world=2)                  # [rank 0's answer, rank 1's answer]

The ranks talk gloo over the loopback interface; the second call starts in milliseconds. `functools.partial` gives a function arguments of its own.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from fallline.errors import FalllineError
from fallline.proof.processes import begin, with_torch
from fallline.proof.seeds import move_seeds, moved_by, seed_everything

__all__ = ["RankFailed", "on_ranks"]

Answer = TypeVar("Answer")


class RankFailed(FalllineError):
    """A rank raised, died, or took too long; the text says which, and what it said."""


def on_ranks(
    function: Callable[[int, int], Answer],
    world: int = 2,
    *,
    seconds: float = 60,
    dies: int | None = None,
) -> list[Answer]:
    """`function(rank, world)` on every rank of a gloo group; its answers by rank. No process outlives the call.

    `dies` is the rank that is meant to die in it, and has no answer.
    """
    context = with_torch()
    with tempfile.TemporaryDirectory(prefix="fallline-ranks-") as folder:
        ends: list[Connection] = []
        processes = []
        for rank in range(world):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank,
                args=(function, rank, world, str(Path(folder, "store")), theirs, moved_by(), dies),
                daemon=True,
            )
            process.start()
            theirs.close()  # so that a rank's death is seen here as the end of its pipe
            ends.append(mine)
            processes.append(process)
        try:
            return _answers(ends, time.monotonic() + seconds, dies)
        finally:
            for process in processes:
                process.kill()
                process.join()
            for end in ends:
                end.close()


def _answers(ends: list[Connection], deadline: float, dies: int | None) -> list[Answer]:
    """One answer from every rank. The first one to fail is the one to report: the others only wait for it."""
    answers: dict[int, Answer] = {}
    expected = [rank for rank in range(len(ends)) if rank != dies]
    while len(answers) < len(expected):
        waiting = [ends[rank] for rank in expected if rank not in answers]
        ready = connection.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(str(rank) for rank in expected if rank not in answers)
            raise RankFailed(f"no answer in time from rank {late}")
        for end in ready:
            assert isinstance(end, Connection)
            rank = ends.index(end)
            try:
                answer, failure = pickle.loads(end.recv_bytes())
            except EOFError:
                raise RankFailed(f"rank {rank} died without an answer") from None
            if failure:
                raise RankFailed(f"rank {rank} failed:\n{failure}")
            answers[rank] = answer
    return [answers[rank] for rank in expected]


def _rank(
    function: Callable[[int, int], Answer],
    rank: int,
    world: int,
    store: str,
    out: Connection,
    seeds_by: int,
    dies: int | None,
) -> None:
    import torch.distributed as dist

    begin()  # a rank whose parent was killed would wait for its neighbour for ever
    move_seeds(seeds_by)
    seed_everything()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        answer = function(rank, world)
        if dies is None:
            dist.barrier()  # nobody leaves while a neighbour still talks to it
        told = pickle.dumps(
            (answer, "")
        )  # plain: multiprocessing's own would share a tensor's memory, which ends with us
    except BaseException:
        told = pickle.dumps((None, traceback.format_exc()))
    out.send_bytes(told)
