"""What the graph of a loss shows that its value does not: shapes that broadcast, a target with a gradient, a softmax over the batch, no
graph at all.

Looked at for the first losses from each line. Only sizes and saved constants are read, so a device is never waited for; the
one question that needs values is asked on a CPU alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fallline.location import Location
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = [
    "LossGraph",
    "bootstraps",
    "broadcast_in",
    "learns_its_target",
    "leaves",
    "near_root",
    "softmax_over_batch",
]

_NODES = 96  # near the root; the model begins below
_LOSSES = frozenset({"MseLossBackward0", "L1LossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"})  # fmt: skip
_JOINS = frozenset({"SubBackward0", "AddBackward0"})
_ADDED_BY_HAND = frozenset({"UnsqueezeBackward0", "ViewBackward0", "ReshapeAliasBackward0"})
_LARGEST = 1 << 20
_FEW = 4


class LossGraph:
    """Looks at losses before their backward runs."""

    def __init__(self, objects: Objects, progress: Progress, observed: Observed) -> None:
        self._objects = objects
        self._progress = progress
        self._observed = observed
        self._seen: set[tuple[str, str, int]] = set()

    def look(self, loss: Tensor, at: Location) -> None:
        if self._objects.optimizer_sets and self._is_cut_off(loss):
            self._saw("FL136", at, {})
        if loss.grad_fn is None:
            return
        found = broadcast_in(loss)
        if found is not None:
            shapes = ("prediction", "target", "result")
            self._saw("FL139", at, dict(zip(shapes, map(_written, found), strict=True)))
        target = learns_its_target(loss, self._objects.held)
        if target is not None:
            self._saw("FL131", at, {"kind": target})
        over = softmax_over_batch(loss)
        if over is not None:
            self._saw("FL609", at, over)

    def _is_cut_off(self, loss: Tensor) -> bool:
        """A loss that is a leaf itself, or a few operations after one that is not a parameter: a copy that was made to require a gradient."""
        if loss.grad_fn is None:
            return loss.requires_grad and not self._objects.is_trained(loss)
        nodes = [node for node, _ in near_root(loss.grad_fn)]
        ends = [node.variable for node in nodes if hasattr(node, "variable")]
        return len(nodes) <= _FEW and bool(ends) and not any(map(self._objects.is_trained, ends))

    def _saw(self, code: str, at: Location, facts: dict[str, Any]) -> None:
        key = (code, at.path, at.line)
        if key not in self._seen:
            self._seen.add(key)
            self._observed.add(code, at, facts | {"step": self._progress.steps})


def broadcast_in(loss: Tensor) -> tuple[tuple[int, ...], ...] | None:
    """The shapes (B, 1), (B,) and (B, B) of two tensors whose sum or difference broadcasts in this loss and of their result; None if none do."""
    joins = ((n, above) for n, above in near_root(loss.grad_fn) if n.name() in _JOINS)
    return next(filter(None, (_joined(node, above) for node, above in joins)), None)


def near_root(root: Any) -> Iterator[tuple[Any, Any]]:
    """Nodes in the order of their distance, each with one that uses its result."""
    seen, queue = {root}, [(root, None)]
    for node, above in queue:
        yield node, above
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(queue) < _NODES:
                seen.add(following)
                queue.append((following, node))


def _joined(node: Any, above: Any) -> tuple[tuple[int, ...], ...] | None:
    """Of a sum or difference: (B, 1) and (B,) that make (B, B)."""
    wide = _shape(node)
    if wide is None or len(wide) < 2 or wide[-1] < 2 or wide[-1] != wide[-2]:
        return None
    sides = [n for n, _ in node.next_functions]
    known = [(n, s) for n in sides if n is not None and (s := _shape(n)) is not None]
    if any(_adds_dimension(n) for n, _ in known):
        return None  # someone asked for all pairs
    match known:
        case [(_, first), (_, second)]:
            column, vector = (first, second) if len(first) > len(second) else (second, first)
            if column == (wide[-1], 1) and vector == (wide[-1],):
                return first, second, wide
        case [(_, only)] if _is_matrix_of(only, wide) and _is_outer(above, wide):
            other = (wide[-1],) if len(only) > 1 else (wide[-1], 1)
            return only, other, wide
    return None


def _is_matrix_of(given: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    size = wide[-1]
    return len(wide) == 2 and wide == (size, size) and size > 1 and given in ((size, 1), (size,))


def _adds_dimension(node: Any) -> bool:
    """`x.unsqueeze(1)`, `x[:, None]`, `x.view(-1, 1)`: the 1 is written there."""
    if node.name() not in _ADDED_BY_HAND:
        return False
    under = node.next_functions[0][0] if node.next_functions else None
    here, before = _shape(node), _shape(under) if under is not None else None
    return here is not None and before is not None and len(here) > len(before)


def _is_outer(node: Any, wide: tuple[int, ...]) -> bool:
    """Whether the square that was saved is a[i] + b[j]: its rows differ by constants. Only on a CPU, where asking waits for nobody."""
    try:
        saved = getattr(node, "_saved_self", None)
    except RuntimeError:  # freed
        return False
    if not isinstance(saved, Tensor) or tuple(saved.shape) != wide or not saved.is_cpu:
        return False
    if saved.numel() > _LARGEST or not saved.is_floating_point():
        return False
    values = saved.detach().double()
    left = values - values[:1]
    spread = (left - left[:, :1]).abs().max().item()
    return spread <= 1e-5 * max(1.0, values.abs().max().item()) and values.std().item() > 0


def learns_its_target(loss: Tensor, held: Any) -> str | None:
    """A regression whose target is `reward + discount * value` with a gradient.

    "value": into parameters that the prediction has too; "target network": into others that an optimizer holds.
    """
    for node, _ in near_root(loss.grad_fn):
        if node.name() not in _LOSSES or len(node.next_functions) < 2:
            continue
        (prediction, _), (target, _) = node.next_functions[:2]
        if prediction is None or target is None or not bootstraps(target):
            continue
        trained = {id(leaf) for leaf in leaves(target) if held(leaf)}
        if trained:
            own = trained & {id(leaf) for leaf in leaves(prediction)}
            return "value" if own else "target network"
    return None


def bootstraps(node: Any) -> bool:
    """A constant plus a product with a constant: `reward + gamma * value`, in any order."""
    while node is not None and node.name() in {
        *_ADDED_BY_HAND,
        "ExpandBackward0",
        "SqueezeBackward1",
    }:
        node = node.next_functions[0][0]
    if node is None or node.name() != "AddBackward0":
        return False
    sides = [n for n, _ in node.next_functions]
    grown = [n for n in sides if n is not None]
    return len(sides) == 2 and len(grown) == 1 and _is_discounted(grown[0])


def _is_discounted(node: Any) -> bool:
    sides = [n for n, _ in node.next_functions]
    return node.name() == "MulBackward0" and sides.count(None) == len(sides) - 1


def softmax_over_batch(loss: Tensor) -> dict[str, Any] | None:
    """A softmax over one dimension whose result is read along another: by `nll_loss`, or by `gather` over the classes."""
    for node, _ in near_root(loss.grad_fn):
        along = _read_along(node)
        made = _softmax_below(node) if along is not None else None
        if made is None or along is None:
            continue
        shape, over = _shape(made), getattr(made, "_saved_dim", None)
        read = _shape(node.next_functions[0][0])
        if shape is None or over is None or read is None or len(shape) < 2:
            continue
        over = (over - (1 << 64) if over >= 1 << 63 else over) % len(shape)
        along %= len(read)
        if (
            shape != read
        ):  # `view(-1, classes)`, `view(classes, samples, -1)`: what was last still is
            last = along == len(read) - 1 and shape[-1] == read[-1]
            along = len(shape) - 1 if last else over
        if over != along and shape[over] > 1:
            return {"over": over, "dimension": along, "shape": _written(shape)}
    return None


def _read_along(node: Any) -> int | None:
    """The dimension in which a node picks one number out of many."""
    name = node.name()
    if name.startswith("NllLoss"):
        return 1 if len(_shape(node.next_functions[0][0]) or ()) > 1 else 0
    if name == "GatherBackward0":
        along = int(node._saved_dim)
        return along - (1 << 64) if along >= 1 << 63 else along
    return None


def _softmax_below(node: Any) -> Any:
    """The softmax that made what a node reads, through logarithms and changes of shape."""
    node = node.next_functions[0][0]
    while node is not None and node.name() in {"LogBackward0", "ClampBackward1", *_ADDED_BY_HAND}:
        node = node.next_functions[0][0]
    is_one = node is not None and node.name() in {"SoftmaxBackward0", "LogSoftmaxBackward0"}
    return node if is_one else None


def leaves(root: Any) -> Iterator[Tensor]:
    seen, stack = {root}, [root]
    while stack and len(seen) < 4_096:
        node = stack.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def _shape(node: Any) -> tuple[int, ...] | None:
    """Of the tensor that a node made."""
    variable = getattr(node, "variable", None)
    if isinstance(variable, Tensor):
        return tuple(variable.shape)
    described = getattr(node, "_input_metadata", None)
    try:
        return tuple(int(size) for size in described[0].shape) if described else None
    except (TypeError, AttributeError, RuntimeError):
        return None


def _written(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
