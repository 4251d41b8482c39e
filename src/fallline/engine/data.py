"""A pass over the data: which micro-batch closes its window, on this rank and on the others, and where a run stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from fallline.engine import rng
from fallline.engine.replicas import Replicas
from fallline.errors import EngineError

__all__ = [
    "Position",
    "Turn",
    "batches_left",
    "capture_sources",
    "is_stateful",
    "plan",
    "restore_sources",
    "turns",
]

_END = object()


@dataclass(slots=True)
class Turn:
    """One batch that `over` hands out, and what its micro-batch has to do."""

    last: bool  # it closes the window
    idle: bool = False  # this rank ran out of data: an old batch with weight zero, so that the ranks stay in step
    total: float | None = (
        None  # micro-batches of the window on all ranks, where that is known beforehand
    )
    used: bool = False


class Position:
    """How far the run is in its data, and the randomness that this pass over it began with.

    A pass is resumed by beginning it again with that randomness and reading past what was already used. That is exact
    for any loader, random augmentations in worker processes included. A loader that can say and restore its own state
    (torchdata's StatefulDataLoader) is asked instead, which is faster.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = 0  # used in this epoch
        self.held: Any = None  # the last batch, for a rank that runs out before the others
        self._loader: Any = None
        self._began: dict[str, Any] | None = None
        self._saved: dict[str, Any] | None = (
            None  # a loader's own state, to be given to the next loader we see
        )

    def open(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's iterator, at the first batch that was not used yet."""
        _set_epoch(loader, self.epoch)
        saved, self._saved = self._saved, None
        self._loader = loader
        if saved is not None and is_stateful(loader):
            loader.load_state_dict(saved["loader"])  # type: ignore[attr-defined]
            return iter(loader)
        if self.batches == 0:
            if saved is not None:
                restore_sources(loader, saved)
            self._began = {"rng": rng.capture_host(), **capture_sources(loader)}
            return iter(loader)
        if saved is None or "rng" not in saved:
            self._began = None  # over() was left in mid-epoch and entered again: the user wants what comes next, not a replay
            self.batches = 0
            return self.open(loader)
        return self._replay(loader, saved)

    def _replay(self, loader: Iterable[Any], began: dict[str, Any]) -> Iterator[Any]:
        now = rng.capture_host()
        rng.restore(began["rng"])
        restore_sources(loader, began)
        self._began = began
        iterator = iter(loader)
        for _ in range(self.batches):
            self.held = next(iterator, None)
        rng.restore(now)
        return iterator

    def close(self) -> None:
        """The pass is complete."""
        self.epoch += 1
        self.batches = 0
        self._began = None

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "batches": self.batches}
        if self._loader is not None:
            if is_stateful(self._loader):
                state["source"] = {"loader": self._loader.state_dict()}
            else:
                state["source"] = (
                    self._began if self._began is not None else capture_sources(self._loader)
                )
        elif self._saved is not None:
            state["source"] = self._saved
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.batches = state["batches"]
        self._saved = state.get("source")
        self._loader = None
        self._began = None


def turns(
    iterator: Iterator[Any],
    length: int | None,
    position: Position,
    accumulate: int,
    opened: int,
    replicas: Replicas,
    device: torch.device,
) -> Iterator[tuple[Any, Turn]]:
    """The batches of a pass, each with its turn. `length` counts what is left, `opened` what the window already holds."""
    if replicas.size == 1:
        for index, batch in enumerate(iterator, 1):
            yield batch, Turn(last=index == length)
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
    for mine, together, total in plan(
        [(left, held) for left, held, _ in rows], accumulate, replicas.rank, replicas.lockstep
    ):
        for index in range(together):
            last, idle = index + 1 == together, index >= mine
            if not idle:
                position.held = next(iterator, _END)
                if position.held is _END:
                    raise EngineError(
                        f"the loader of rank {replicas.rank} ended before its len(): the ranks agreed on updates by that length"
                    )
            yield position.held, Turn(last, idle, total)


def plan(
    rows: Sequence[tuple[int, int]], accumulate: int, rank: int, lockstep: bool = False
) -> Iterator[tuple[int, int, float]]:
    """For every window: the micro-batches that this rank has for it, how many turns it takes, and how many there are on all ranks.

    `rows` holds, for every rank, the batches left and the micro-batches already in its open window. A rank without data takes
    one turn, to synchronise. In lockstep (FSDP gathers parameters in every forward pass) all ranks take as many as the busiest.
    """
    ends = [left + opened for left, opened in rows]
    for window in range(max(-(-end // accumulate) for end in ends)):
        counts = [min(accumulate, max(0, end - window * accumulate)) for end in ends]
        new = [
            count - (opened if window == 0 else 0)
            for count, (_, opened) in zip(counts, rows, strict=True)
        ]
        yield new[rank], max(1, max(new) if lockstep else new[rank]), float(sum(counts))


def _turns_of_unknown_length(
    iterator: Iterator[Any],
    position: Position,
    accumulate: int,
    opened: int,
    replicas: Replicas,
    device: torch.device,
) -> Iterator[tuple[Any, Turn]]:
    batch = next(iterator, _END)
    # Waits for the device, once a window (in lockstep once a micro-batch): nobody can know which rank's stream ends first.
    while replicas.largest(float(batch is not _END or opened > 0), device):
        for index in range(opened, accumulate):
            if batch is _END and position.held is None:
                raise EngineError(
                    f"the stream of rank {replicas.rank} is empty: give every rank at least one batch"
                )
            idle = batch is _END
            others = replicas.largest(float(not idle), device) if replicas.lockstep else 0.0
            ends = idle and not others
            if not idle:
                position.held = batch
            yield position.held, Turn(ends or index + 1 == accumulate, idle)
            batch = next(iterator, _END)
            if ends:
                break
        opened = 0


def batches_left(loader: Any, position: Position) -> int | None:
    """How many batches are still to come, or None where the loader cannot be trusted to know."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None  # its length is a guess: torch itself warns about it
    try:
        return max(0, len(loader) - position.batches)
    except (TypeError, NotImplementedError):
        return None


def _parts(loader: Any) -> list[Any]:
    """The loader, its samplers and its dataset: whoever may hold an order."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
    ]
    return [
        part
        for i, part in enumerate(parts)
        if part is not None and all(part is not other for other in parts[:i])
    ]


def _set_epoch(loader: Any, epoch: int) -> None:
    for part in _parts(loader):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)


def is_stateful(part: Any) -> bool:
    return callable(getattr(part, "state_dict", None)) and callable(
        getattr(part, "load_state_dict", None)
    )


def _generators(loader: Any) -> list[torch.Generator]:
    found = [getattr(part, "generator", None) for part in _parts(loader)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def capture_sources(loader: Any) -> dict[str, Any]:
    return {
        "generators": [g.get_state() for g in _generators(loader)],
        "samplers": [part.state_dict() for part in _parts(loader)[1:] if is_stateful(part)],
    }


def restore_sources(loader: Any, saved: dict[str, Any]) -> None:
    for generator, state in zip(_generators(loader), saved["generators"], strict=False):
        generator.set_state(state.cpu())
    stateful = [part for part in _parts(loader)[1:] if is_stateful(part)]
    for part, state in zip(stateful, saved["samplers"], strict=False):
        part.load_state_dict(state)
