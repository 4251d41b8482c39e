"""Where a run is in its data, and how it gets there again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils.data import IterableDataset

from fallline.engine import rng
from fallline.engine.order import Order, Place, Share, place_of
from fallline.errors import EngineError

__all__ = [
    "Position",
    "Turn",
    "batches_left",
    "capture_sources",
    "is_stateful",
    "restore_sources",
]


@dataclass(slots=True)
class Turn:
    """One batch that `over` hands out, and what its micro-batch has to do."""

    batch: Any
    last: bool  # it closes the window
    idle: bool = False  # this rank ran out of data: an old batch with weight zero, so that the ranks stay in step
    total: float | None = (
        None  # micro-batches of the window on all ranks, where that is known beforehand
    )
    used: bool = False
    final: bool = False  # of the last window of this pass, on all ranks


class Position:
    """How far the run is in its data, and the randomness that this pass over it began with.

    A pass is resumed by beginning it again with that randomness and reading past what was already used. That is exact
    for any loader, random augmentations in worker processes included. A loader that can say and restore its own state
    (torchdata's StatefulDataLoader) is asked instead, which is faster.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = 0  # used in this epoch
        self.current: Any = None  # the pass that hands out batches
        self.turn: Turn | None = None  # of the batch that `over` has handed out
        self.held: Any = None  # the last batch, for a rank that runs out before the others
        self._loader: Any = None
        self._iterator: Iterator[Any] | None = None  # of a pass that is not complete
        self.went_back = False  # to an earlier place, in the middle of a pass
        self.at_end = False  # the last window of the pass is complete, on all ranks
        self._place: Order | Share | None = None  # the loader's global order, if it has one
        self._samples: int | None = None  # of it, where the next iterator begins
        self.left_out: dict[
            int, list[tuple[int, int]]
        ] = {}  # by epoch: places that are never given again
        self._began: dict[str, Any] | None = None
        self._saved: dict[str, Any] | None = (
            None  # a loader's own state, to be given to the next loader we see
        )

    def open(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's iterator, at the first batch that was not used yet."""
        self.leave()
        if self._iterator is not None and self._loader is loader:
            return self._iterator  # over() was left in mid-epoch and entered again
        if self._iterator is not None and self.batches:
            self.close()  # another loader: the pass over the old one is over
        self._loader = loader
        self._iterator = self._begin(loader)
        return self._iterator

    def leave(self) -> None:
        """The pass was left. A batch that was handed out and not used comes first when it is entered again."""
        turn, self.turn = self.turn, None
        if turn is not None and not turn.used and not turn.idle and self._iterator is not None:
            self._iterator = chain([turn.batch], self._iterator)

    def go_back(self, state: dict[str, Any], epoch: int, begin: int, end: int) -> None:
        """To where `state` was, and never give these places of an epoch again."""
        left_out = self.left_out
        self.load_state_dict(state)
        self.left_out = left_out
        left_out.setdefault(epoch, []).append((begin, end))
        self.turn = None
        self.went_back = True

    @property
    def has_order(self) -> bool:
        return self._place is not None

    def used_epoch(self, loader: Any) -> int:
        """The epoch that a pass over this loader would be."""
        other = self._iterator is not None and self._loader is not loader and self.batches > 0
        return self.epoch + other

    def used_of(self, loader: Any) -> int:
        """How many batches of this loader are behind us."""
        if self._samples is not None and (place := place_of(loader)) is not None:
            place.set_epoch(self.epoch)
            place.start = self._samples
            return 0
        return self.batches if self._loader is None or self._loader is loader else 0

    def _begin(self, loader: Iterable[Any]) -> Iterator[Any]:
        _set_epoch(loader, self.epoch)
        _restart_workers(loader)
        saved, self._saved = self._saved, None
        self._place = place_of(loader)
        if self._place is not None:
            return self._begin_at_place(loader, self._place, saved or {})
        if saved is not None and "loader" in saved and is_stateful(loader):
            # Making its iterator draws from the generators that were just restored, and the run that is resumed did not.
            now = rng.capture_host()
            loader.load_state_dict(saved["loader"])  # type: ignore[attr-defined]
            iterator = iter(loader)
            rng.restore(now)
            return iterator
        if self.batches and saved is not None and "rng" in saved:
            return self._replay(loader, saved)
        if self.batches and saved is not None:
            raise EngineError(
                f"the run stopped after {self.batches} batches of an epoch, and its loader could restore itself; a "
                f"{type(loader).__name__} cannot. Give over() the same kind of loader"
            )
        self.batches = 0
        if saved is not None and "generators" in saved:
            restore_sources(loader, saved)
        self._began = {"rng": rng.capture_host(), **capture_sources(loader)}
        return iter(loader)

    def _begin_at_place(self, loader: Any, place: Place, saved: dict[str, Any]) -> Iterator[Any]:
        """The place is one number: nothing is read past."""
        if self.batches and self._samples is None:
            raise EngineError(
                f"the run stopped after {self.batches} batches of an epoch, in an order that depended on the number of ranks: "
                "resume it with the loader it was saved with"
            )
        place.start, self.batches = self._samples or 0, 0
        place.left_out = {int(e): [(a, b) for a, b in r] for e, r in self.left_out.items()}
        resumed, self._samples = self._samples is not None, None
        now = rng.capture_host() if resumed else None
        iterator = iter(loader)
        if now is not None:  # making an iterator draws, and the run that is resumed did not
            rng.restore(now)
        return iterator  # type: ignore[no-any-return]

    @property
    def samples(self) -> int | None:
        """How many samples of this epoch's global order are behind, where there is one."""
        if self._place is None or self._iterator is None:
            return self._samples
        if self.at_end and isinstance(self._place, Order):
            return self._place.size  # also on a rank that had less
        return self._place.behind(self.batches)

    def samples_at(self, epoch: int, begin: int, end: int) -> list[int]:
        if self._place is None:
            raise EngineError("the samples of an update can be named once over() has been entered")
        return self._place.samples(epoch, begin, end)

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
        self._iterator = None
        self._samples = None
        self.at_end = False

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "batches": self.batches}
        if self.left_out:
            state["left_out"] = {
                e: [list(r) for r in ranges] for e, ranges in self.left_out.items()
            }
        if (samples := self.samples) is not None:
            return state | {"samples": samples}
        if self._place is not None:
            return state  # between two epochs
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
        self.left_out = {e: [(a, b) for a, b in r] for e, r in state.get("left_out", {}).items()}
        self._samples = state.get("samples")
        self._saved = state.get("source")
        self._place = None
        self.at_end = False
        self._loader = None
        self._iterator = None
        self._began = None


def batches_left(loader: Any, used: int) -> int | None:
    """How many batches are still to come, or None where the loader cannot be trusted to know."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None  # its length is a guess: torch itself warns about it
    try:
        return max(0, len(loader) - used)
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


def _restart_workers(loader: Any) -> None:
    """Persistent workers carry their randomness from one epoch to the next, and nobody can save it: each pass begins with new ones."""
    if getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None):
        loader._iterator = None


def is_stateful(part: Any) -> bool:
    if (inner := getattr(part, "base_dataloader", None)) is not None:
        return is_stateful(inner)  # Accelerate's loaders have the methods in any case
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
