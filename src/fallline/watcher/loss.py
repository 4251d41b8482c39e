"""What a loss says about itself: read off the root of its graph, without touching a value that training uses.

`loss / 4` leaves a DivBackward0 that has kept the 4; `F.cross_entropy` leaves a node that knows its reduction. The
walk stops at the first thing that is not a scalar operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["facts_of", "reached"]

_DEPTH = 24
# Operations that hand a scalar on as it is.
_THROUGH = frozenset(
    {
        "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "SqueezeBackward0", "SqueezeBackward1",
        "UnsqueezeBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ExpandBackward0",
        "NegBackward0",
    }
)  # fmt: skip
_JOINS = frozenset({"AddBackward0", "SubBackward0"})


def facts_of(loss: Tensor, scales: Iterable[Tensor], ragged: bool | None = None) -> dict[str, Any]:
    """scaled, divided, divisor, reduction, ragged: what the graph's root says, where it says it.

    `ragged`: what is known already; looking for ignored targets costs more than all the rest. Where it is not known, `counted` is over how
    many elements the loss is a mean, and whether that is fewer than there are: only two losses together show that the number varies.
    """
    found = _Root({s.data_ptr() for s in scales if s is not None}, ragged)
    node = loss.grad_fn
    if node is not None:
        found.walk(node, _DEPTH)
    return found.facts()


class _Root:
    """The scalar operations at the root of one loss."""

    def __init__(self, scales: set[int], ragged: bool | None) -> None:
        self.scales = scales
        self.look = ragged is None
        self.scaled = False
        self.divided = False
        self.divisor = 1.0
        self.terms = 1
        self.reductions: set[str] = set()
        self.ragged = bool(ragged)
        self.counted: tuple[float, bool] | None = None

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "scaled": self.scaled,
            "divided": self.divided,
        }
        if self.divisor > 1:
            facts["divisor"] = self.divisor
        if len(self.reductions) == 1:
            facts["reduction"] = next(iter(self.reductions))
        if self.ragged:
            facts["ragged"] = True
        elif self.counted is not None:
            facts["counted"] = self.counted
        return facts

    def walk(self, node: Any, depth: int) -> None:
        while node is not None and depth > 0:
            depth -= 1
            name = node.name()
            following = [n for n, _ in node.next_functions if n is not None]
            if name in _THROUGH:
                node = following[0] if following else None
            elif name in ("DivBackward0", "DivBackward1", "MulBackward0"):
                node = self._factor(node, name.startswith("Div"), following)
            elif name in _JOINS and len(following) == 2:
                self.terms += 1
                self.walk(following[0], depth)
                node = following[1]
            elif name in _JOINS and following:
                node = following[0]
            else:
                self._reduction(node, name)
                return

    def _factor(self, node: Any, division: bool, following: list[Any]) -> Any:
        """Take one multiplication or division by a scalar into account; the node to continue with."""
        if len(following) != 1:
            return None  # both sides carry gradients: a product of losses, not a weight
        other = _scalar_operand(node)
        if other is None:
            return None
        if not division and isinstance(other, Tensor) and other.data_ptr() in self.scales:
            self.scaled = True
            return following[0]
        value = _number(other)
        if value is None:
            self.divided = True  # by a tensor on a device: its value would cost a wait
            return following[0]
        if division and self._normalises(following[0], value):
            return None
        factor = value if division else (1 / value if value else 0.0)
        if factor > 1:
            self.divided = True
            if self.terms == 1:  # the weight of one term is not the whole's
                self.divisor *= factor
        return following[0]

    def _normalises(self, node: Any, count: float) -> bool:
        """Whether this division turns a sum over the batch into its mean; else the whole window is meant."""
        while node is not None and node.name() in _THROUGH:
            node = next((n for n, _ in node.next_functions if n is not None), None)
        if node is None:
            return False
        if node.name().startswith("SumBackward"):
            summed, counted = (
                _numel(getattr(node, "_saved_self_sym_sizes", None)),
                _weight_under(node),
            )
        elif getattr(node, "_saved_reduction", None) == 2:
            summed, counted = _targets(node)
        else:
            return False
        if count != (summed if counted is None else counted):
            return False
        self.reductions.add("mean")
        self.counted = (count, count != summed)
        return True

    def _reduction(self, node: Any, name: str) -> None:
        saved = getattr(node, "_saved_reduction", None)
        if saved is not None:
            self.reductions.add(
                ("none", "mean", "sum")[int(saved)] if int(saved) in (0, 1, 2) else "none"
            )
            if not self.look:
                return
            ignored = getattr(node, "_saved_ignore_index", None)
            target = getattr(node, "_saved_target", None)
            if ignored is not None and isinstance(target, Tensor) and target.device.type == "cpu":
                self.counted = _counted(target.reshape(-1) == ignored)
        elif name.startswith("MeanBackward"):
            self.reductions.add("mean")
        elif name.startswith("SumBackward"):
            self.reductions.add("sum")


def _counted(ignored: Tensor) -> tuple[float, bool]:
    """How many targets are not ignored, and whether some are, other than the last one of each row: labels that were shifted by one leave
    that gap in every row."""
    count, size = int(ignored.sum()), ignored.numel()
    if not count:
        return size, False
    rows_end = size % count == 0 and size > count
    return size - count, not (rows_end and bool(ignored.view(count, -1)[:, -1].all()))


def _scalar_operand(node: Any) -> Any:
    try:
        other = node._saved_other
    except (AttributeError, RuntimeError):  # freed, or not saved because nothing needs it
        return None
    if other is None:
        try:
            other = node._saved_self
        except (AttributeError, RuntimeError):
            return None
    if isinstance(other, Tensor) and other.numel() != 1:
        return None
    return other


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        if value.device.type != "cpu" or value.is_complex():
            return None
        return float(value.item())
    return float(value) if isinstance(value, int | float) else None


def _weight_under(node: Any) -> float | None:
    """Of `(loss * mask).sum()`, the sum of the mask."""
    for following, _ in node.next_functions:
        if following is not None and following.name() == "MulBackward0":
            for name in ("_saved_other", "_saved_self"):
                try:
                    mask = getattr(following, name)
                except (AttributeError, RuntimeError):
                    continue
                if (
                    isinstance(mask, Tensor)
                    and not mask.requires_grad
                    and mask.device.type == "cpu"
                ):
                    return float(mask.sum())
    return None


def _targets(node: Any) -> tuple[int | None, int | None]:
    """How many targets a summed loss has, and how many of them are not ignored."""
    target = getattr(node, "_saved_target", None)
    if not isinstance(target, Tensor):
        return None, None
    ignored = getattr(node, "_saved_ignore_index", None)
    if ignored is None or target.device.type != "cpu":
        return target.numel(), None
    return target.numel(), int((target != ignored).sum())


def _numel(sizes: Any) -> int | None:
    if sizes is None:
        return None
    total = 1
    for size in sizes:
        total *= int(size)
    return total


def reached(loss: Tensor, mark: str, limit: int = 30_000) -> tuple[list[Tensor], list[Any], bool]:
    """The leaves a backward from this loss reaches, the marks left under `mark` on its nodes, and if that is all.

    False at the end where the walk was cut short or met a reentrant checkpoint, which hides what it holds.
    """
    leaves: list[Tensor] = []
    marks: list[Any] = []
    if loss.grad_fn is None:
        return ([loss] if loss.requires_grad else []), marks, True
    seen = {loss.grad_fn}
    stack: list[Any] = [loss.grad_fn]
    whole = True
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves.append(variable)
            continue
        left = node.metadata.get(mark)
        if left is not None:
            marks.append(left)
        if node.name() == "CheckpointFunctionBackward":
            whole = False
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > limit:
            return leaves, marks, False
    return leaves, marks, whole


def root_marker(tensor: Any, mark: str, value: Any) -> bool:
    """Leave a mark on the node that made this tensor; it lives exactly as long as the graph does."""
    node: Any = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
    if node is None:
        return False
    node.metadata[mark] = value
    return True
