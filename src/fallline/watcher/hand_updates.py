"""Updates without an optimizer: `p -= lr * p.grad`, or `p.data.add_(p.grad, alpha=-lr)`, under `no_grad`.

A parameter whose gradient is read by a line of the user's, and which has changed before the next backward, was updated by hand.
Such updates are recorded like those of an optimizer, with their loss. In a program that makes an optimizer this looks no further:
what is changed by hand there is an attack, a clipping, a moving average.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from fallline.location import Location
from fallline.replay.shards import local
from fallline.runs.update import UpdateRow
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.gradients import GRADIENT_READ, GradientRead, gradient_of
from fallline.taps.optimizers import OPTIMIZER_MADE
from fallline.taps.tap import Subscription
from fallline.watcher.later import syncs_allowed
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.recorder import Recorder, as_it_is

__all__ = ["BY_HAND", "HandUpdates"]

BY_HAND = "updates by hand"  # in the place of an optimizer's name
LOOKED_AT = 8  # parameters of an update: all of them change, or none
CARRIED = 5  # updates in a row whose gradients were still there when the next backward began: nothing clears them
TRUSTED = 3  # updates after which a line on an accelerator is known to update: comparing would wait for the device


@dataclass(slots=True)
class _Before:
    """A parameter when its gradient was read."""

    parameter: weakref.ref[Tensor]
    version: int
    values: Tensor | None  # the first few
    gradient: int  # the version of its gradient


class HandUpdates:
    """Listens until an optimizer is made. `safely` runs a handler so that its failure does not reach the program."""

    def __init__(
        self,
        open: Callable[[], Recorder],
        progress: Progress,
        draft: Draft,
        safely: Callable[..., Any],
    ) -> None:
        self._progress = progress
        self._draft = draft
        self._open = open
        self._before: dict[int, _Before] = {}
        self._at: Location | None = None
        self._lines: set[Location | None] = set()  # that have updated
        self._losses: list[Any] = []
        self._loss_at: Location | None = None
        self._in_place = (
            False  # the version of a tensor shows the updates, so values need not be kept
        )
        self._compared = 0  # updates that only the values showed
        self._carried = 0  # updates in a row, from the first one, after which nothing cleared
        self._taps = Subscription()
        self._taps.after(OPTIMIZER_MADE, lambda call: self.stop())
        self._taps.before(BACKWARD, lambda call: safely(self._backward, call))
        self._taps.before(GRADIENT_READ, lambda call: safely(self._read, call))

    def start(self, rebind: bool) -> None:
        """To be started before those who ask how many updates there were when a backward begins."""
        self._taps.rebind = rebind
        self._taps.start()

    def stop(self) -> None:
        self._taps.stop()
        self._before.clear()

    def finish(self) -> None:
        """The program is over: the last update has no backward behind it."""
        self.settle()
        self.stop()

    def _backward(self, call: BackwardCall) -> None:
        self.settle()
        if isinstance(call.loss, Tensor) and call.loss.numel() == 1:
            self._losses.append(as_it_is(call.loss))
            place = call.place
            self._loss_at = place.at if place is not None else None

    def _read(self, call: GradientRead) -> None:
        tensor = call.tensor
        known = id(tensor) in self._before or len(self._before) >= LOOKED_AT
        gradient = gradient_of(tensor)
        if known or not self._losses or gradient is None:
            return
        kept = None if self._in_place or self._trusts(tensor) else _values(tensor)
        self._before[id(tensor)] = _Before(
            weakref.ref(tensor), tensor._version, kept, gradient._version
        )
        place = call.place
        self._at = place.at if place is not None else None

    def _trusts(self, tensor: Tensor) -> bool:
        return self._compared >= TRUSTED and not tensor.is_cpu

    def settle(self) -> None:
        """A new backward begins, or the program is over: was there an update since the last one?"""
        if self._before and any(map(self._changed, self._before.values())):
            if self._carried >= 0:
                carried = any(map(_still_there, self._before.values()))
                self._carried = self._carried + 1 if carried else -1
            self._record()
        self._before.clear()

    def _changed(self, before: _Before) -> bool:
        now = before.parameter()
        if now is None:
            return self._at in self._lines  # the program is over, and its model gone
        if now._version != before.version:
            self._in_place = True
            return True
        if before.values is None:
            return self._trusts(now)
        with syncs_allowed():
            changed = not torch.equal(before.values, _values(now))
        self._compared += changed
        return changed

    def _record(self) -> None:
        recorder, progress = self._open(), self._progress
        losses, self._losses = self._losses, []
        recorder.update(
            UpdateRow(
                progress.by_hand,
                BY_HAND,
                self._at,
                self._loss_at,
                loss=_mean(losses),
                seconds=self._draft.parts(perf_counter()),
                micro_batches=max(1, len(losses)),
                batch_at=self._draft.batch_at,
            )
        )
        if self._carried == CARRIED:
            recorder.describe(BY_HAND, {"uncleared": CARRIED})
            self._carried = -1  # said
        self._draft.clear()
        progress.by_hand += 1
        progress.by_hand_at = self._at
        self._lines.add(self._at)


def _still_there(before: _Before) -> bool:
    """Whether the gradient that was read has not been touched since: neither set to None, nor to zero, nor scaled down."""
    parameter = before.parameter()
    gradient = gradient_of(parameter) if parameter is not None else None
    if gradient is None or gradient._version != before.gradient:
        return False
    with syncs_allowed():
        return bool(_values(gradient).any())  # `p.grad.data.zero_()` leaves the version as it is


def _values(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return local(tensor.detach()).reshape(-1)[:16].clone()


def _mean(losses: list[Any]) -> Any:
    if len(losses) < 2 or any(not isinstance(loss, float) for loss in losses):
        return losses[-1] if losses else None
    return sum(losses) / len(losses)
