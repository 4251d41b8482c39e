"""Losses of torch's own functions that are given something else than they expect: probabilities where logits are meant, logits where log-probabilities are.

The operation that made the input says what it is, so no value is read. Looked at in the first updates.
"""

from __future__ import annotations

from typing import Any

from fallline.taps.losses import LOSS, LossCall
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["LossInputs", "mismatch"]

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
    "binary_cross_entropy": {"log_softmax": "FL612"},
}


class LossInputs:
    """In the first updates."""

    def __init__(self, progress: Progress, observed: Observed) -> None:
        self._progress = progress
        self._observed = observed
        self._taps = Subscription()
        self._seen: set[tuple[str, int]] = set()

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
        where = call.place if found is not None else None
        if found is None or where is None or (key := (where.at.path, where.at.line)) in self._seen:
            return
        self._seen.add(key)
        code, given = found
        facts = {"loss": call.function, "given": given, "step": self._progress.steps}
        self._observed.add(code, where.at, facts)


def mismatch(loss: str, node: Any) -> tuple[str, str] | None:
    """The rule that a loss breaks with an input that this node made, and what the input is."""
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
