"""What all ranks do together: meet, hear of each other's failures, and say the same thing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fallline.errors import EngineError

__all__ = ["gather", "meet", "rank", "together", "world_size"]

T = TypeVar("T")

_PATIENCE = 300.0  # seconds; a rank that evaluates alone may be late


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: T, group: Any = None) -> list[T]:
    """Every rank's value, on every rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def together(action: Callable[[], T], group: Any = None) -> T:
    """Do it on every rank. If it fails on one, all raise the same words; nobody waits for a rank that is gone."""
    failure: str | None = None
    result: T | None = None
    try:
        result = action()
    except Exception as error:
        if world_size() == 1:
            raise
        failure = (
            str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        )
        cause: Exception | None = error
    else:
        cause = None
    failures = [(i, text) for i, text in enumerate(gather(failure, group)) if text is not None]
    if failures:
        every = {text for _, text in failures}
        who = (
            "" if len(failures) == world_size() and len(every) == 1 else f"rank {failures[0][0]}: "
        )
        raise EngineError(who + failures[0][1]) from cause
    return result  # type: ignore[return-value]


def meet(what: str) -> None:
    """Wait for the other ranks, but not for ever: `if rank == 0: save_checkpoint(...)` leaves this one alone here."""
    if world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    key = f"fallline/{what}/{_meetings.next()}"
    arrived = store.add(key, 1)
    if arrived == world_size():
        store.set(f"{key}/all", "1")
    try:
        store.wait([f"{key}/all"], timedelta(seconds=_patience()))
    except RuntimeError as error:
        arrived = store.add(key, 0)
        store.add(key, -1)  # this meeting did not take place
        _meetings.number -= 1
        raise EngineError(
            f"{what} was called by {arrived} of {world_size()} ranks: call it on every rank, not under `if rank == 0`. "
            "Rank 0 writes the shared state, and each rank writes its own random state and place in the data"
        ) from error


class _Meetings:
    """Counts the meetings of one process group: a new one begins again, on all its ranks."""

    def __init__(self) -> None:
        self.number = 0
        self._world: Any = None

    def next(self) -> int:
        if self._world is not dist.group.WORLD:
            self._world, self.number = dist.group.WORLD, 0
        self.number += 1
        return self.number


_meetings = _Meetings()


def _patience() -> float:
    """Half of what torch itself would wait before it aborts the process."""
    world: Any = dist.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            timeout = world._get_backend(torch.device(device)).options._timeout
        except (AttributeError, RuntimeError):  # it has no backend for that device
            continue
        return float(min(_PATIENCE, timeout.total_seconds() / 2))
    return _PATIENCE
