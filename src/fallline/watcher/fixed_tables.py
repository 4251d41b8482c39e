"""Parameters that begin as a table of sines and cosines, and that an optimizer trains.

Looked at when an optimizer is made, while their values are the first ones: in such a table, half of each row's size is sine, half is
cosine of the same angles, so the squares of a row of d numbers add up to d / 2, and position 0 is made of zeros and ones.
"""

from __future__ import annotations

import ast
import inspect
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fallline.location import Location
from fallline.replay.source import parsed
from fallline.taps.frames import is_user_file, shown_path
from fallline.taps.optimizers import OPTIMIZER_MADE, OptimizerMade
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.later import syncs_allowed
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed

__all__ = ["FixedTables", "is_sine_cosine"]

_STEPS = 2
_LEAST = 8  # rows, and numbers in one
_MOST = 4_194_304  # numbers in a table
_EXACT = 1e-3
_WORDS = ("fixed", "frozen", "constant", "trainable", "learnable", "trained", "learned")


class FixedTables:
    """Of the parameters that optimizers are given."""

    def __init__(self, objects: Objects, observed: Observed) -> None:
        self._objects = objects
        self._observed = observed
        self._tables: list[weakref.ref[Tensor]] = []

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(OPTIMIZER_MADE, fuse.guarded(self._made))

    def _made(self, call: OptimizerMade) -> None:
        given = [p for g in call.optimizer.param_groups for p in g["params"]]
        likely = [p for p in given if type(p) is nn.Parameter and _could_be(p)]
        if likely:
            with torch.no_grad(), syncs_allowed():
                likely = [p for p, yes in zip(likely, _look_at_rows(likely), strict=True) if yes]
                self._tables += [weakref.ref(p) for p in likely if is_sine_cosine(p)]

    def stepped(self, steps: int) -> None:
        """Its model has been called, and says what it is called."""
        if steps != _STEPS or not self._tables:
            return
        for reference in self._tables:
            table = reference()
            found = self._owner(table) if table is not None and table.requires_grad else None
            if found is not None:
                name, attribute, owner = found
                at, says = _written(owner, attribute)
                if at is not None:
                    self._observed.add("FL812", at, {"parameter": name, "says": says})

    def _owner(self, table: Tensor) -> tuple[str, str, nn.Module] | None:
        for _, model in self._objects.models():
            for path, module in model.named_modules():
                for attribute, parameter in module._parameters.items():
                    if parameter is table:
                        return f"{path}.{attribute}".lstrip("."), attribute, module
        return None


def is_sine_cosine(table: Tensor) -> bool:
    """Every row but empty ones is half sine and half cosine, and one of them is that of position 0."""
    rows = table.detach().reshape(-1, table.shape[-1]).float()
    rows = rows[rows.abs().amax(1) > 0]
    if len(rows) < _LEAST or not _adds_up(rows).all():
        return False
    zeros_and_ones = ((rows == 0) | (rows == 1)).all(1)
    return bool(zeros_and_ones.any())


def _could_be(table: Tensor) -> bool:
    """One matrix of a table's size, also with dimensions of one before it, whose gradient is wanted."""
    sizes = table.shape
    return (
        table.requires_grad
        and table.layout is torch.strided
        and table.is_floating_point()
        and not table.is_meta
        and len(sizes) > 1
        and sizes[-1] >= _LEAST
        and sizes[-2] >= _LEAST
        and table.numel() == sizes[-1] * sizes[-2] <= _MOST
    )


def _look_at_rows(tables: Sequence[Tensor]) -> list[bool]:
    """By two rows of each, in one copy where they are on a device."""
    few = [t.detach().reshape(-1, t.shape[-1])[1:3].float() for t in tables]
    home = few[0].device
    found: list[bool] = torch.stack([_adds_up(rows).all().to(home) for rows in few]).tolist()
    return found


def _adds_up(rows: Tensor) -> Tensor:
    half = rows.shape[-1] / 2
    return (rows.square().sum(-1) - half).abs() <= _EXACT * half


def _written(owner: nn.Module, attribute: str) -> tuple[Location | None, str]:
    """Where the class of a module fills an attribute last, and the first line in it that speaks of constants."""
    try:
        path = inspect.getsourcefile(type(owner))
        lines, first = inspect.getsourcelines(type(owner))
    except (OSError, TypeError):
        return None, ""
    tree = parsed(path) if path is not None and is_user_file(path) else None
    if path is None or tree is None:
        return None, ""
    span = range(first, first + len(lines))
    statements = (n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno in span)
    line = max((n.lineno for n in statements if _fills(n, attribute)), default=first)
    says = next((text.strip() for text in lines if any(w in text.lower() for w in _WORDS)), "")
    return Location(shown_path(path), line, function=f"{type(owner).__qualname__}.__init__"), says


def _fills(node: ast.stmt, attribute: str) -> bool:
    """`self.name = ...`, `self.name.data = ...`, `self.name.data.copy_(...)`, `self.name.copy_(...)`."""
    held: ast.AST | None = None
    match node:
        case ast.Assign([target]):
            held = target
        case ast.Expr(ast.Call(ast.Attribute(target, "copy_"))):
            held = target
    if isinstance(held, ast.Attribute) and held.attr == "data":
        held = held.value
    match held:
        case ast.Attribute(ast.Name("self"), name):
            return name == attribute
    return False
