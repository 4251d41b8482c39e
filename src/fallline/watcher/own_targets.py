"""Losses whose target has a graph: a prediction of the same model, or of a network that is trained beside it.

Looked at for the first losses of torch's own functions. What the target is called decides, where its graph does not: two
predictions that are moved towards each other on purpose look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from fallline.location import Location
from fallline.replay.modules import variables
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.losses import LOSS, LossCall
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.loss_graph import bootstraps, leaves, near_root
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["OwnTargets"]

UPDATES = 8
_MOST = 32  # losses before one backward
# What may lie between a model's output and the loss: probabilities and shapes of the same numbers.
_SAME = ("Softmax", "Log", "Exp", "Sigmoid", "Clamp", "View", "Reshape", "Squeeze", "Unsqueeze", "Div", "ToCopy")  # fmt: skip


class _Compared(NamedTuple):
    function: str
    prediction: Any  # the node that made it
    target: Any
    called: str
    at: Location


class OwnTargets:
    """In the first updates."""

    def __init__(self, objects: Objects, progress: Progress, observed: Observed) -> None:
        self._objects = objects
        self._progress = progress
        self._observed = observed
        self._taps = Subscription()
        self._compared: list[_Compared] = []
        self._seen: set[tuple[str, int]] = set()

    def start(self, fuse: Fuse, *, rebind: bool = False) -> None:
        self._taps = taps = Subscription(rebind=rebind)
        taps.before(LOSS, fuse.guarded(self._loss))
        taps.before(BACKWARD, fuse.guarded(self._backward))
        taps.start()

    def stop(self) -> None:
        """Nothing more is looked at."""
        self._compared = []
        self._taps.stop()

    def stepped(self, steps: int) -> None:
        if steps == UPDATES:
            self.stop()

    def _loss(self, call: LossCall) -> None:
        prediction, target = call.input.grad_fn, call.target.grad_fn
        if prediction is None or target is None or self._progress.steps >= UPDATES:
            return
        where = call.place
        if where is not None and len(self._compared) < _MOST:
            names = (n for n, v in variables(call.frame).items() if v is call.target)
            called = next(names, "")
            self._compared.append(_Compared(call.function, prediction, target, called, where.at))

    def _backward(self, call: BackwardCall) -> None:
        compared, self._compared = self._compared, []
        for one in compared:
            key = (one.at.path, one.at.line)
            kind = self._kind(one, compared) if key not in self._seen else None
            if kind is not None:
                self._seen.add(key)
                facts = {"kind": kind, "loss": one.function, "target": one.called}
                self._observed.add("FL131", one.at, facts | {"step": self._progress.steps})

    def _kind(self, one: _Compared, others: list[_Compared]) -> str | None:
        """Whose prediction the target is; None where it is not one that should have been cut off."""
        if bootstraps(one.target):
            return None  # which the loss's own graph shows
        mine, its = _source(one.prediction), _source(one.target)
        if any(node is its for node, _ in near_root(one.prediction)):
            return None  # an entropy, a divergence from a mean: both sides are one prediction
        if any(_source(o.prediction) is its and _source(o.target) is mine for o in others):
            return None  # each towards the other
        trained = self._trained(one.target)
        if not trained:
            return None
        return "prediction" if trained & self._trained(one.prediction) else "network"

    def _trained(self, node: Any) -> set[int]:
        held: Callable[[Tensor], bool] = self._objects.held
        return {id(leaf) for leaf in leaves(node) if held(leaf)}


def _source(node: Any) -> Any:
    """The node that made the numbers, before they became probabilities or got another shape."""
    while node.name().startswith(_SAME) or "LogSoftmax" in node.name():
        following = list(_inputs(node))
        if len(following) != 1:
            break
        node = following[0]
    return node


def _inputs(node: Any) -> Iterator[Any]:
    return (following for following, _ in node.next_functions if following is not None)
