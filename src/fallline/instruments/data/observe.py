"""Hears a run for `measure data`: what the listener needs, and the script's own objects while they are there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fallline.instruments.observer import Observer
from fallline.instruments.where import user_line
from fallline.lessons.listen import Listener
from fallline.lessons.script_objects import Held, held
from fallline.taps.losses import LOSS, LossCall
from fallline.taps.patches import Patches
from fallline.taps.tap import Subscription
from fallline.taps.vocabulary import RESIZED, Resized

__all__ = ["Hearing"]


class Hearing(Observer):
    """Until enough batches were learned from."""

    def __init__(self, batches: int) -> None:
        self.listener = Listener(batches)
        self.held: Held | None = None

    def subscribe(self, patches: Patches) -> None:
        """To what an observer is not told of, until these patches are removed."""
        taps = Subscription(rebind=True)
        taps.before(LOSS, self.loss_begins)
        taps.after(RESIZED, self.resized)
        taps.start()
        patches.on_removal(taps.stop)

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        self.listener.batch_ends(iterator, batch)

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self.held is None and torch.is_grad_enabled():
            self.held = held()
        self.listener.forward_begins(model, args, kwargs, user_line())

    def forward_ends(self, model: nn.Module, output: Any) -> None:
        self.listener.forward_ends(model, output)

    def loss_begins(self, call: LossCall) -> None:
        self.listener.loss_begins(call, call.place.at if call.place else user_line())

    def backward_begins(self, loss: Any) -> None:
        self.listener.backward_begins(loss, user_line())

    def backward_ends(self) -> None:
        self.listener.backward_ends()
        self.over = self.listener.full

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self.listener.optimizer_made(optimizer, user_line())

    def step_ends(self, optimizer: Optimizer) -> None:
        self.listener.step_ends(optimizer)

    def update_ends(self, number: int) -> None:
        self.listener.update_ends(number)

    def resized(self, call: Resized) -> None:
        at = call.place.at if call.place else None
        self.listener.learner.resized(call.model, call.before, call.after, at)

    def failed(self, error: BaseException) -> None:
        if self.held is None:
            self.held = held()
        self.listener.failed(error)
