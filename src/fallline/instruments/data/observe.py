"""Listens to a run: the first calls of its models in training, what their losses were given, and what got a gradient."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fallline.instruments.data.learns import Learner
from fallline.instruments.data.lesson import Given, Lesson, Observation, keep, note
from fallline.instruments.data.policy import Policies
from fallline.instruments.data.script_objects import Held, held
from fallline.instruments.observer import Observer
from fallline.instruments.where import user_line
from fallline.location import Location
from fallline.replay.modules import unwrap
from fallline.taps.losses import LOSS, LossCall
from fallline.taps.patches import Patches
from fallline.taps.tap import Subscription
from fallline.taps.vocabulary import RESIZED, Resized

__all__ = ["Listener"]

_LARGEST = 50_000_000  # numbers in one tensor that are still copied


class Listener(Observer):
    """Keeps the first lessons of a run."""

    def __init__(self, batches: int) -> None:
        self.wanted = batches
        self.lessons: list[Lesson] = []
        self.pending: list[Lesson] = []
        self.observed: list[Observation] = []
        self.losses: list[float] = []
        self.learner = Learner()
        self.policies = Policies()
        self.held: Held | None = None
        self.batch: Any = None
        self.loader: Any = None
        self.updates = 0

    def subscribe(self, patches: Patches) -> None:
        """To what an observer is not told of, until these patches are removed."""
        taps = Subscription(rebind=True)
        taps.before(LOSS, self.loss_begins)
        taps.after(RESIZED, self.resized)
        taps.start()
        patches.on_removal(taps.stop)

    @property
    def full(self) -> bool:
        return len(self.lessons) >= self.wanted

    # -- data --------------------------------------------------------------------------------------------------

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        if not self.full:
            self.batch, self.loader = batch, iterator

    # -- models ------------------------------------------------------------------------------------------------

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self.full or next(model.parameters(), None) is None:
            return
        inner = unwrap(model)
        at = user_line()
        inputs = named(inner, args, kwargs)
        self.policies.begins(inner, inputs, at)
        self._look_at_tokens(inner, inputs, at)
        if not torch.is_grad_enabled():
            return
        if self.held is None:
            self.held = held()
        self.learner.meet(inner, at)
        lesson = Lesson(at, type(inner).__name__, inputs, copied(self.batch))
        self.pending.append(lesson)

    def forward_ends(self, model: nn.Module, output: Any) -> None:
        if not self.full:
            self.policies.ends(unwrap(model), output)

    def _look_at_tokens(
        self, model: nn.Module, inputs: dict[str, Any], at: Location | None
    ) -> None:
        """An id that the embedding does not have: on a CPU the next thing is an IndexError, on a GPU an assertion."""
        ids = inputs.get("input_ids")
        rows = _rows(model)
        if (
            rows is None
            or not isinstance(ids, Tensor)
            or ids.is_floating_point()
            or not ids.numel()
        ):
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= rows:
            bad = high if high >= rows else low
            facts = {"what": "token", "value": bad, "size": rows, "of": "embedding"}
            keep(self.observed, note("FL017", at, **facts))

    def loss_begins(self, call: LossCall) -> None:
        """The loss tap: what is really compared."""
        if self.full:
            return
        at = call.place.at if call.place else user_line()
        given = Given(
            call.function,
            copied(call.target.detach()),
            tuple(call.input.shape),
            call.reduction,
            call.ignore_index,
            at,
        )
        self._look_at_classes(given)
        if not torch.is_grad_enabled() or not call.input.requires_grad:
            return
        if call.reduction == "none":
            predicted = call.input.detach()
            call.input.register_hook(lambda gradient: _weigh(given, predicted, gradient))  # type: ignore[no-untyped-call]
        if self.pending:
            self.pending[-1].given.append(given)

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

    def backward_begins(self, loss: Any) -> None:
        if self.full:
            return
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self.losses.append(float(loss.detach()))
        self.learner.loss(loss, user_line())
        self.policies.backward_begins()

    def backward_ends(self) -> None:
        if self.full:
            return
        self._close()
        self.learner.backward_ends()
        self.policies.backward_ends()
        self.over = self.full

    def _close(self) -> None:
        """What was called since the last backward is complete. A head outside of the model has its loss in the next call."""
        compared = [given for lesson in self.pending for given in lesson.given]
        for lesson in self.pending:
            lesson.given = lesson.given or compared
        self.lessons += self.pending
        self.pending = []

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self.learner.optimizer(optimizer, user_line())

    def update_ends(self, number: int) -> None:
        self.updates = number
        self.policies.update_ends()

    def resized(self, call: Resized) -> None:
        at = call.place.at if call.place else None
        self.learner.resized(call.model, call.before, call.after, at)

    def failed(self, error: BaseException) -> None:
        self._close()
        if self.held is None:
            self.held = held()
        self.learner.failed(error)


def named(model: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """What a model is called with, by the names of its `forward`, tensors copied."""
    try:
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {f"input{i or ''}": a for i, a in enumerate(args)} | kwargs
    inputs: dict[str, Any] = {}
    for name, value in bound.items():
        if name in ("kwargs", "args") and isinstance(value, dict):
            inputs |= {k: copied(v) for k, v in value.items()}
        elif name == "args" and isinstance(value, tuple):
            inputs |= {f"input{i or ''}": copied(v) for i, v in enumerate(value)}
        else:
            inputs[name] = copied(value)
    return inputs


def copied(thing: Any, depth: int = 4) -> Any:
    """Tensors on the CPU that nothing changes any more."""
    if isinstance(thing, Tensor):
        small = thing.numel() <= _LARGEST and not thing.is_meta
        return thing.detach().to("cpu", copy=True) if small else None
    if depth and isinstance(thing, dict):
        return {k: copied(v, depth - 1) for k, v in thing.items()}
    if depth and hasattr(thing, "data") and isinstance(getattr(thing, "data", None), dict):
        return copied(thing.data, depth - 1)  # a BatchEncoding
    if depth and isinstance(thing, list | tuple):
        return [copied(v, depth - 1) for v in thing]
    return thing


def _rows(model: nn.Module) -> int | None:
    """Rows of the embedding of a Transformers model."""
    try:
        weight = model.get_input_embeddings().weight  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return int(weight.shape[0]) if isinstance(weight, Tensor) and weight.dim() == 2 else None


def _weigh(given: Given, predicted: Tensor, gradient: Tensor) -> None:
    """How much each prediction counts in the loss. Returns nothing, so that the gradient stays as it is."""
    rows, logits = gradient.detach(), predicted
    if rows.dim() > 2:  # (samples, classes, positions)
        rows, logits = rows.movedim(1, -1), logits.movedim(1, -1)
    given.weights = rows.abs().amax(-1).reshape(-1).cpu()
    target = given.target.to(rows.device).reshape(rows.shape[:-1])
    counted = (target != given.ignored) & (target >= 0)
    if given.function != "cross_entropy" or target.is_floating_point() or not bool(counted.any()):
        return
    chosen = target.clamp(min=0)[..., None]
    missing = 1 - logits.float().softmax(-1).gather(-1, chosen)
    weight = -rows.gather(-1, chosen).float() / missing.clamp(min=1e-6)
    given.total = float(weight[..., 0][counted].sum())
