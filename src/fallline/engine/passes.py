"""A pass over the data, as `stepper.over(loader)` gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import torch

from fallline.engine.position import Position, batches_left
from fallline.engine.replicas import Replicas
from fallline.engine.turns import turns
from fallline.engine.window import Window
from fallline.errors import EngineError

__all__ = ["Pass"]

T = TypeVar("T")


class Pass(Generic[T]):
    """The batches of one epoch that were not used yet. It has a length where the loader has one, for progress bars."""

    def __init__(
        self,
        loader: Iterable[T],
        position: Position,
        window: Window,
        replicas: Replicas,
        device: torch.device,
        finish: Callable[[], None],
        after_epoch: Callable[[], None],
        after_open: Callable[[], None],
    ) -> None:
        self._loader = loader
        self._position = position
        self._window = window
        self._replicas = replicas
        self._device = device
        self._finish = finish
        self._after_epoch = after_epoch
        self._after_open = after_open

    def __len__(self) -> int:
        left = batches_left(self._loader, self._position.used_of(self._loader))
        if left is None:
            raise TypeError(f"a {type(self._loader).__name__} does not know how long it is")
        return left

    def __iter__(self) -> Iterator[T]:
        position = self._position
        token = position.current = object()
        epoch = position.used_epoch(self._loader)
        while position.epoch <= epoch:  # once, unless the run goes back on the way
            yield from self._batches(token)
            if position.went_back:
                position.went_back = False
                continue
            if self._window.count:
                self._finish()
            position.close()
            self._after_epoch()

    def _batches(self, token: object) -> Iterator[T]:
        position, window = self._position, self._window
        iterator = position.open(self._loader)
        self._after_open()
        length = batches_left(self._loader, position.batches)
        opened = window.count - window.idle
        try:
            for turn in turns(
                iterator, length, position, window.next_size, opened, self._replicas, self._device
            ):
                position.turn = turn
                batch: T = turn.batch
                yield batch
                if position.current is not token:
                    raise EngineError(
                        "over() was called inside over(): finish one pass, or break out of it, before the next begins"
                    )
                self._check_used(turn.used)
                if position.went_back:
                    return
        finally:
            if position.current is token:
                position.leave()

    def _check_used(self, used: bool) -> None:
        if used:
            return
        if self._replicas.size > 1:
            raise EngineError(
                "a batch from over() was given no micro_batch(): on several ranks each must have exactly one. "
                "If there is nothing to learn from a batch, give it weight 0: micro.backward(loss_sum, weight=0)"
            )
        self._position.batches += 1
