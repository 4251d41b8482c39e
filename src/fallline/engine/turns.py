"""Which micro-batch closes its window, on this rank and on the others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate as running_sum
from typing import Any

import torch

from fallline.engine.position import Position, Turn
from fallline.engine.replicas import Replicas
from fallline.errors import EngineError

__all__ = ["plan", "turns"]

_END = object()


def turns(
    iterator: Iterator[Any],
    length: int | None,
    position: Position,
    accumulate: Callable[[], int],
    opened: int,
    replicas: Replicas,
    device: torch.device,
) -> Iterator[Turn]:
    """The batches of a pass, each with its turn. `length` counts what is left, `opened` what the window already holds."""
    if replicas.size == 1:
        for index, batch in enumerate(iterator, 1):
            yield Turn(batch, last=index == length)
        return
    rows = replicas.gather(
        [-1 if length is None else length, opened, int(position.held is not None)], device
    )
    if any(row[0] < 0 for row in rows):
        yield from _turns_of_unknown_length(
            iterator, position, accumulate, opened, replicas, device
        )
        return
    for rank, (left, _, holds) in enumerate(rows):
        if left == 0 and not holds and any(row[0] for row in rows):
            raise EngineError(
                f"rank {rank} has no data in this epoch and others have: give every rank at least one batch"
            )
    windows = plan(
        [(left, held) for left, held, _ in rows], accumulate, replicas.rank, replicas.lockstep
    )
    to_come = float(sum(row[0] + row[1] for row in rows))
    for mine, together, total in windows:
        to_come -= total
        for index in range(together):
            last, idle = index + 1 == together, index >= mine
            if not idle:
                position.held = next(iterator, _END)
                if position.held is _END:
                    raise EngineError(
                        f"the loader of rank {replicas.rank} ended before its len(), from which the ranks had computed the number of updates"
                    )
            yield Turn(position.held, last, idle, total, final=to_come <= 0)


def plan(
    rows: Sequence[tuple[int, int]],
    accumulate: Callable[[], int],
    rank: int,
    lockstep: bool = False,
) -> Iterator[tuple[int, int, float]]:
    """For every window: the micro-batches that this rank has for it, how many turns it takes, and how many there are on all ranks.

    `rows` holds, for every rank, the batches left and the micro-batches already in its open window. A rank without data takes
    part in every window all the same, with one turn.

    A window's total comes from the sorted ends of the ranks, by two searches: a thousand ranks cost as much as two.
    """
    ends = [left + opened for left, opened in rows]
    ordered = sorted(ends)
    sums = [0, *running_sum(ordered)]
    done, opened = 0, rows[rank][1]
    while done < ordered[-1]:
        size = accumulate()
        over, full = bisect_right(ordered, done), bisect_left(ordered, done + size)
        total = sums[full] - sums[over] - done * (full - over) + size * (len(ends) - full)
        mine = max(0, min(size, ends[rank] - done)) - opened
        most = min(size, ordered[-1] - done)
        if done == 0:  # only the first window may have begun before
            most = max(min(size, end) - held for end, (_, held) in zip(ends, rows, strict=True))
        yield mine, max(1, most if lockstep else mine), float(total)
        done, opened = done + size, 0


def _turns_of_unknown_length(
    iterator: Iterator[Any],
    position: Position,
    accumulate: Callable[[], int],
    opened: int,
    replicas: Replicas,
    device: torch.device,
) -> Iterator[Turn]:
    batch = next(iterator, _END)
    # Waits for the device, once a window (in lockstep once a micro-batch): nobody can know which rank's stream ends first.
    while replicas.largest(float(batch is not _END or opened > 0), device):
        size = accumulate()
        for index in range(opened, size):
            if batch is _END and position.held is None:
                raise EngineError(
                    f"the stream of rank {replicas.rank} is empty: give every rank at least one batch"
                )
            idle = batch is _END
            others = replicas.largest(float(not idle), device) if replicas.lockstep else 0.0
            ends = idle and not others
            if not idle:
                position.held = batch
            yield Turn(position.held, ends or index + 1 == size, idle)
            batch = next(iterator, _END)
            if ends:
                break
        opened = 0
