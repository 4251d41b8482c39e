"""What the graph of a loss shows that its value does not: shapes that broadcast, a target with a gradient, no graph at all.

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

__all__ = ["LossGraph", "broadcast_in", "learns_its_target"]

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
        if learns_its_target(loss, self._objects.held):
            self._saw("FL131", at, {})

    def _is_cut_off(self, loss: Tensor) -> bool:
        """A loss that is a leaf itself, or a few operations after one that is not a parameter: a copy that was made to require a gradient."""
        if loss.grad_fn is None:
            return loss.requires_grad and not self._objects.is_trained(loss)
        nodes = [node for node, _ in _near_root(loss.grad_fn)]
        leaves = [node.variable for node in nodes if hasattr(node, "variable")]
        return (
            len(nodes) <= _FEW and bool(leaves) and not any(map(self._objects.is_trained, leaves))
        )

    def _saw(self, code: str, at: Location, facts: dict[str, Any]) -> None:
        key = (code, at.path, at.line)
        if key not in self._seen:
            self._seen.add(key)
            self._observed.add(code, at, facts | {"step": self._progress.steps})


def broadcast_in(loss: Tensor) -> tuple[tuple[int, ...], ...] | None:
    """The shapes (B, 1), (B,) and (B, B) of two tensors that broadcast in this loss and of their result; None if none do."""
    for node, above in _near_root(loss.grad_fn):
        name = node.name()
        if name in _LOSSES:
            found = _expanded(node)
        elif name in _JOINS:
            found = _joined(node, above)
        else:
            continue
        if found is not None:
            return found
    return None


def _near_root(root: Any) -> Iterator[tuple[Any, Any]]:
    """Nodes in the order of their distance, each with one that uses its result."""
    seen, queue = {root}, [(root, None)]
    for node, above in queue:
        yield node, above
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(queue) < _NODES:
                seen.add(following)
                queue.append((following, node))


def _expanded(node: Any) -> tuple[tuple[int, ...], ...] | None:
    """Of `mse_loss`, which expands both sides itself: one that grew into a matrix because the other is a column."""
    for following, _ in node.next_functions:
        if following is None or following.name() != "ExpandBackward0":
            continue
        under = following.next_functions[0][0]
        given, wide = _shape(under), _shape(following)
        if given is not None and wide is not None and _is_matrix_of(given, wide):
            other = (wide[-1],) if given[-1:] == (1,) and len(given) > 1 else (wide[-1], 1)
            return given, other, wide
    return None


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


def learns_its_target(loss: Tensor, held: Any) -> bool:
    """A regression whose target is `reward + discount * value` with a gradient, into parameters that the prediction has too."""
    for node, _ in _near_root(loss.grad_fn):
        if node.name() not in _LOSSES or len(node.next_functions) < 2:
            continue
        (prediction, _), (target, _) = node.next_functions[:2]
        if prediction is None or target is None or not _bootstraps(target):
            continue
        trained = {id(leaf) for leaf in _leaves(prediction) if held(leaf)}
        if trained & {id(leaf) for leaf in _leaves(target)}:
            return True
    return False


def _bootstraps(node: Any) -> bool:
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


def _leaves(root: Any) -> Iterator[Tensor]:
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
