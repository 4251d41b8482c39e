"""Listens to a run: the first calls of its models in training, what their losses were given, and what got a gradient.

Everything here is called by the training thread. Nothing draws a random number or changes a tensor; a run that is watched does not
wait for its device either: what was copied is read later, by `judge`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fallline.lessons.copies import Copies
from fallline.lessons.learns import Learner
from fallline.lessons.lesson import Given, Lesson, Observation, keep, note
from fallline.lessons.policy import Policies
from fallline.location import Location
from fallline.replay.modules import unwrap
from fallline.taps.losses import LossCall

__all__ = ["Listener", "copied"]

_LARGEST = 50_000_000  # numbers in one tensor that are still copied
_LOGITS = 200_000_000
_LARGEST_WATCHED = 4_000_000  # the same of a run that is only watched: tokens, not images
_LOGITS_WATCHED = 64_000_000
_PENDING = 16  # calls of models before one backward


class Listener:
    """Keeps the first lessons of a run."""

    def __init__(self, batches: int, *, watched: bool = False) -> None:
        """`watched`: a run that continues and must not wait; only whole numbers are copied, and only small tensors."""
        self.wanted = batches
        self.watched = watched
        self.copies = Copies(waits=not watched, largest=_LARGEST_WATCHED if watched else _LARGEST)
        self.lessons: list[Lesson] = []
        self.pending: list[Lesson] = []
        self.observed: list[Observation] = []
        self.losses: list[float] = []
        self.learner = Learner(self.copies)
        self.policies = Policies(self.copies, _LOGITS_WATCHED if watched else _LOGITS)
        self.batch: Any = None
        self.loader: Any = None
        self.updates = 0
        self.calls = 0  # of models

    @property
    def full(self) -> bool:
        return len(self.lessons) >= self.wanted

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        if not self.full:
            self.batch, self.loader = batch, iterator

    # -- models ------------------------------------------------------------------------------------------------

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any, at: Location | None) -> None:
        if self.full or next(model.parameters(), None) is None:
            return
        self.calls += 1
        inner = unwrap(model)
        bound = named(inner, args, kwargs)
        self.policies.begins(inner, bound, at)
        self._look_at_tokens(inner, bound, at)
        if not torch.is_grad_enabled():
            return
        self.learner.meet(inner, at)
        inputs = {name: self._copied(value) for name, value in bound.items()}
        lesson = Lesson(at, type(inner).__name__, inputs, self._batch())
        self.pending = [*self.pending, lesson][-_PENDING:]

    def _copied(self, value: Any) -> Any:
        if not self.watched:
            return copied(value, self.copies)
        whole = isinstance(value, Tensor) and not value.is_floating_point()
        return self.copies.of(value) if whole else None

    def _batch(self) -> Any:
        return None if self.watched else copied(self.batch, self.copies)

    def forward_ends(self, model: nn.Module, output: Any) -> None:
        if not self.full:
            self.policies.ends(unwrap(model), output)

    def _look_at_tokens(self, model: nn.Module, bound: dict[str, Any], at: Location | None) -> None:
        """An id that the embedding does not have: on a CPU the next thing is an IndexError, on a GPU an assertion."""
        ids, rows = bound.get("input_ids"), _rows(model)
        if rows is None or not isinstance(ids, Tensor) or ids.is_floating_point():
            return
        if not ids.numel() or not self.copies.here(ids):
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= rows:
            bad = high if high >= rows else low
            facts = {"what": "token", "value": bad, "size": rows, "of": "embedding"}
            keep(self.observed, note("FL017", at, **facts))

    def loss_begins(self, call: LossCall, at: Location | None) -> None:
        """What is really compared."""
        if self.full:
            return
        target = self.copies.of(call.target)
        if target is None or (self.watched and target.is_floating_point()):
            return
        shape = tuple(call.input.shape)
        given = Given(call.function, target, shape, call.reduction, call.ignore_index, at)
        if self.copies.here(call.target):
            self._look_at_classes(given)
        if not torch.is_grad_enabled() or not call.input.requires_grad:
            return
        if call.reduction == "none":
            self._weigh(given, call)
        if self.pending:
            self.pending[-1].given.append(given)

    def _weigh(self, given: Given, call: LossCall) -> None:
        """How much each prediction counts shows in its gradient."""
        predicted, target = call.input.detach(), call.target.detach()
        if self.watched and predicted.numel() > _LOGITS_WATCHED:
            return

        def hook(gradient: Tensor) -> None:
            _weigh(given, predicted, target, gradient, self.copies)

        call.input.register_hook(hook)  # type: ignore[no-untyped-call]

    def _look_at_classes(self, given: Given) -> None:
        if given.function not in ("cross_entropy", "nll_loss") or given.target.is_floating_point():
            return
        counted = given.target[given.target != given.ignored]
        if not counted.numel() or len(given.predicted) < 1:
            return
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= given.classes:
            bad = high if high >= given.classes else low
            facts = {"what": "label", "value": bad, "size": given.classes, "of": "head"}
            keep(self.observed, note("FL017", given.at, **facts))

    # -- backward and step -------------------------------------------------------------------------------------

    def backward_begins(self, loss: Any, at: Location | None) -> None:
        if self.full:
            return
        if not self.watched and isinstance(loss, Tensor) and loss.numel() == 1:
            self.losses.append(float(loss.detach()))
        self.learner.loss(loss, at)
        self.policies.backward_begins(at)

    def backward_ends(self) -> None:
        if not self.full:
            self.close()
            self.learner.backward_ends()

    def close(self) -> None:
        """What was called since the last backward is complete. A head outside of the model has its loss in the next call."""
        compared = [given for lesson in self.pending for given in lesson.given]
        for lesson in self.pending:
            lesson.given = lesson.given or compared
        self.lessons += self.pending
        self.pending = []

    def optimizer_made(self, optimizer: Optimizer, at: Location | None) -> None:
        self.learner.optimizer(optimizer, at)

    def step_ends(self, optimizer: Optimizer) -> None:
        self.learner.step_ends(optimizer)

    def update_ends(self, number: int) -> None:
        self.updates = number
        self.policies.update_ends()

    def failed(self, error: BaseException) -> None:
        self.close()
        self.learner.failed(error)

    def arrive(self) -> None:
        """Wait for the copies, and take in what they say."""
        self.copies.arrive()
        self.learner.settle()
        self.policies.compare()


def named(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """What a model is called with, by the names of its `forward`."""
    try:
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"input{i or ''}": a for i, a in enumerate(args)} | kwargs
    inputs: dict[str, Any] = {}
    for name, value in bound.items():
        if name in ("kwargs", "args") and isinstance(value, dict):
            inputs |= value
        elif name == "args" and isinstance(value, tuple):
            inputs |= {f"input{i or ''}": v for i, v in enumerate(value)}
        else:
            inputs[name] = value
    return inputs


def copied(thing: Any, copies: Copies, depth: int = 4) -> Any:
    """The same with its tensors on the CPU, where nothing changes them any more."""
    if isinstance(thing, Tensor):
        return copies.of(thing)
    if depth and isinstance(thing, dict):
        return {k: copied(v, copies, depth - 1) for k, v in thing.items()}
    if depth and hasattr(thing, "data") and isinstance(getattr(thing, "data", None), dict):
        return copied(thing.data, copies, depth - 1)  # a BatchEncoding
    if depth and isinstance(thing, list | tuple):
        return [copied(v, copies, depth - 1) for v in thing]
    return thing


def _rows(model: nn.Module) -> int | None:
    """Rows of the embedding of a Transformers model."""
    try:
        weight = model.get_input_embeddings().weight  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return int(weight.shape[0]) if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _weigh(
    given: Given, predicted: Tensor, target: Tensor, gradient: Tensor, copies: Copies
) -> None:
    """How much each prediction counts in the loss. Returns nothing, so that the gradient stays as it is."""
    rows, logits = gradient.detach(), predicted
    if rows.dim() > 2:  # (samples, classes, positions)
        rows, logits = rows.movedim(1, -1), logits.movedim(1, -1)
    given.weights = copies.of(rows.abs().amax(-1).reshape(-1))
    target = target.to(rows.device).reshape(rows.shape[:-1])
    if given.function != "cross_entropy" or target.is_floating_point():
        return
    counted = (target != given.ignored) & (target >= 0)
    chosen = target.clamp(min=0)[..., None]
    missing = 1 - logits.float().softmax(-1).gather(-1, chosen)
    weight = -rows.gather(-1, chosen).float() / missing.clamp(min=1e-6)
    given.total = copies.of((weight[..., 0] * counted).sum())
