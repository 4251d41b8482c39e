"""Losses of torch's own functions that are given something else than they expect: probabilities where logits are meant, logits where
log-probabilities are, a target of another shape.

The operation that made the input says what it is, so no value is read. Looked at in the first updates.
"""

from __future__ import annotations

from typing import Any

import torch

from fallline.taps.losses import LOSS, LossCall
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["LossInputs", "all_pairs", "mismatch"]

UPDATES = 8
# The same numbers in another shape, type or selection: what they are does not change.
_SAME = frozenset(
    "View Reshape ReshapeAlias UnsafeView Squeeze Unsqueeze Permute Transpose T Select Slice ToCopy Clone Index IndexSelect"
    " MaskedSelect Expand Alias".split()
)
_KINDS = {
    **{"Softmax": "softmax", "Sigmoid": "sigmoid", "LogSoftmax": "log_softmax"},
    **{"Relu": "relu", "Addmm": "logits", "Convolution": "logits"},
}
# What each loss must not be given, and which rule says so.
_WRONG = {
    "cross_entropy": {"softmax": "FL606", "sigmoid": "FL606", "relu": "FL612"},
    "binary_cross_entropy_with_logits": {"softmax": "FL606", "sigmoid": "FL606", "relu": "FL612"},
    "nll_loss": {"softmax": "FL612", "sigmoid": "FL612", "logits": "FL612"},
    "kl_div": {"softmax": "FL612", "sigmoid": "FL612", "logits": "FL612"},
    "binary_cross_entropy": {"log_softmax": "FL612"},
}


_ELEMENT_BY_ELEMENT = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})


class LossInputs:
    """In the first updates."""

    def __init__(self, progress: Progress, observed: Observed) -> None:
        self._progress = progress
        self._observed = observed
        self._taps = Subscription()
        self._seen: set[tuple[str, str, int]] = set()

    def start(self, fuse: Fuse, *, rebind: bool = False) -> None:
        self._taps = taps = Subscription(rebind=rebind)
        taps.before(LOSS, fuse.guarded(self._loss))
        taps.start()

    def stop(self) -> None:
        """Nothing more is looked at."""
        self._taps.stop()

    def stepped(self, steps: int) -> None:
        if steps == UPDATES:
            self.stop()

    def _loss(self, call: LossCall) -> None:
        if call.input.grad_fn is None or self._progress.steps >= UPDATES:
            return
        found = mismatch(call.function, call.input.grad_fn)
        if found is not None:
            self._saw(call, found[0], {"loss": call.function, "given": found[1]})
        wide = all_pairs(call.input.shape, call.target.shape)
        if wide is not None and call.function in _ELEMENT_BY_ELEMENT:
            shapes = {"prediction": call.input.shape, "target": call.target.shape, "result": wide}
            self._saw(call, "FL139", {name: str(tuple(shape)) for name, shape in shapes.items()})

    def _saw(self, call: LossCall, code: str, facts: dict[str, Any]) -> None:
        where = call.place
        if where is not None and (key := (code, where.at.path, where.at.line)) not in self._seen:
            self._seen.add(key)
            self._observed.add(code, where.at, facts | {"step": self._progress.steps})


def all_pairs(one: torch.Size, other: torch.Size) -> torch.Size | None:
    """The shape that (B, 1) and (B,) make together: larger than both. Who wants all pairs gives both as many dimensions."""
    if len(one) == len(other):
        return None
    try:
        wide = torch.broadcast_shapes(one, other)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None  # torch refuses it too
    return wide if wide.numel() > max(one.numel(), other.numel()) else None


def mismatch(loss: str, node: Any) -> tuple[str, str] | None:
    """The rule that a loss breaks with an input that this node made, and what the input is."""
    if loss == "kl_div" and _operation(node) == "Expand":
        return None  # one prediction against several stored ones: minus their dot product, which is meant
    given = _kind(node)
    code = _WRONG.get(loss, {}).get(given) if given is not None else None
    return (code, given) if code is not None and given is not None else None


def _kind(node: Any) -> str | None:
    while (name := _operation(node)) in _SAME:
        following = [n for n, _ in node.next_functions if n is not None]
        if len(following) != 1:
            return None
        node = following[0]
    return _KINDS.get(name)


def _operation(node: Any) -> str:
    """`Softmax` of `SoftmaxBackward0`."""
    name: str = node.name()
    return name.lstrip("_").partition("Backward")[0]
