"""Gradients read and changed by hand: `p.grad.div_(k)`, `p.grad = None`, `p.grad.norm()`.

For the first updates accesses to `Tensor.grad` from the user's own lines are listened to; what the line does with the
gradient is read from its source. When the first updates show no such line, we leave, and `.grad` costs what it costs in torch.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from fallline.events import Event, Kind
from fallline.replay.source import attribute_at, enclosing
from fallline.taps.frames import locate
from fallline.taps.gradients import (
    GRADIENT_READ,
    GRADIENT_WRITTEN,
    GradientRead,
    GradientWritten,
    gradient_of,
)
from fallline.taps.tap import Call

if TYPE_CHECKING:
    from fallline.watcher.session import Session

__all__ = ["GradientTap"]

PROBED_UPDATES = 30
_INPLACE = {
    "div_": "div",
    "mul_": "mul",
    "add_": "add",
    "sub_": "add",
    "copy_": "assign",
    "normal_": "noise",
}
_AUGMENTED = {ast.Div: "div", ast.Mult: "mul", ast.Add: "add", ast.Sub: "add"}
_NORMS = frozenset({"norm", "vector_norm", "get_total_norm", "_foreach_norm"})
_VALUES = frozenset(
    {
        "item",
        "abs",
        "mean",
        "max",
        "min",
        "std",
        "var",
        "sum",
        "cpu",
        "tolist",
        "numpy",
        "isnan",
        "isinf",
        "isfinite",
        "square",
        "pow",
    }
)
_NOISE = frozenset({"randn_like", "randn", "normal", "rand_like"})
# Attributes that hand the same gradient on.
_SAME = frozenset({"data", "detach", "float", "clone", "view", "flatten", "reshape", "double"})


class GradientTap:
    """Turns accesses to `Tensor.grad` into events, for as long as there are any."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seen = False
        self.pending: dict[tuple[Kind, int], tuple[Event, list[Any]]] = {}

    def stepped(self, updates: int) -> None:
        """Nothing was done by hand in the first updates: get out of the way."""
        if updates == PROBED_UPDATES and not self.seen:
            self.session.taps.leave(GRADIENT_READ, GRADIENT_WRITTEN)

    def settle(self) -> None:
        """Something else happens: what was done line by line to many parameters is complete."""
        for event, parameters in self.pending.values():
            event.facts["parameters"] = self.session.objects.parameters(parameters)
        self.pending.clear()

    def _note(self, kind: Kind, tensor: Any, call: Call, **facts: Any) -> None:
        self.seen = True
        frame = call.frame
        at = locate(frame.f_code, frame.f_lasti, frame.f_lineno)
        pending = self.pending.get((kind, id(at)))
        if pending is not None:
            pending[1].append(tensor)
            return
        event = self.session.tell(kind, call.place, **facts)
        self.pending[kind, id(at)] = (event, [tensor])

    def read(self, call: GradientRead) -> None:
        tensor = call.tensor
        if gradient_of(tensor) is None:
            return
        kind, fact = self._meaning(call.frame)
        if kind is None:
            return
        if kind is Kind.GRAD_READ:
            if not isinstance(tensor, torch.nn.Parameter) and not self.session._held(tensor):
                fact = "input"
            self._note(kind, tensor, call, what=fact)
        elif kind is Kind.ZERO_GRAD:
            self._note(kind, tensor, call, clears="grad")
        else:
            self._note(kind, tensor, call, op=fact)

    def _meaning(self, frame: FrameType) -> tuple[Kind | None, str]:
        """What the line does with the gradient it reads."""
        node = attribute_at(frame, "grad")
        if node is None:
            return Kind.GRAD_READ, "use"
        here: ast.AST = node
        for up in enclosing(node):
            if isinstance(up, ast.Attribute):
                name = up.attr
                if name == "zero_":
                    return Kind.ZERO_GRAD, "grad"
                if name in _INPLACE:
                    return Kind.GRAD_WRITE, self._inplace(name, up)
                if name in _NORMS:
                    return Kind.GRAD_READ, "norm"
                if name in _VALUES:
                    return (Kind.GRAD_READ, "norm" if _roots(up) else "value")
                if name in (
                    "requires_grad",
                    "requires_grad_",
                    "detach_",
                    "is_sparse",
                    "shape",
                    "dtype",
                    "device",
                    "numel",
                    "size",
                ):
                    return None, ""
                if name.endswith("_") and not name.endswith("__"):
                    return Kind.GRAD_WRITE, "other"
                if name not in _SAME:
                    return Kind.GRAD_READ, "value"
            elif isinstance(up, ast.Call):
                if here is not up.func:
                    called = (
                        up.func.attr
                        if isinstance(up.func, ast.Attribute)
                        else getattr(up.func, "id", "")
                    )
                    return (
                        Kind.GRAD_READ,
                        "norm"
                        if called in _NORMS
                        else "value"
                        if called in _VALUES or called == "print"
                        else "use",
                    )
            elif isinstance(
                up, ast.Compare | ast.BoolOp | ast.If | ast.IfExp | ast.While | ast.Assert
            ):
                return None, ""  # `if p.grad is not None`
            elif isinstance(up, ast.AugAssign) and up.target is node:
                return None, ""  # the store that follows tells it
            elif isinstance(up, ast.stmt):
                if isinstance(up, ast.Assign) and any(_reads_own(t) for t in up.targets):
                    return None, ""  # `p.grad = p.grad / k`: the store that follows tells it
                if (
                    isinstance(up, ast.Assign)
                    and isinstance(up.value, ast.Attribute)
                    and up.value is node
                ):
                    return None, ""  # `g = p.grad`: what happens to g is not seen
                return Kind.GRAD_READ, "use"
            here = up
        return Kind.GRAD_READ, "use"

    def _inplace(self, name: str, method: ast.Attribute) -> str:
        call = getattr(method, "parent", None)
        if name in ("add_", "sub_") and isinstance(call, ast.Call):
            named = {
                n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "")
                for n in ast.walk(call)
            }
            if named & _NOISE:
                return "noise"
        return _INPLACE[name]

    def written(self, call: GradientWritten) -> None:
        if call.value is None:
            self._note(Kind.ZERO_GRAD, call.tensor, call, clears="none")
            return
        node = attribute_at(call.frame, "grad")
        up = getattr(node, "parent", None)
        op = "assign"
        if isinstance(up, ast.AugAssign):
            op = _AUGMENTED.get(type(up.op), "other")
        elif isinstance(up, ast.Assign) and isinstance(up.value, ast.BinOp):
            left = up.value.left
            if isinstance(left, ast.Attribute) and left.attr == "grad":
                op = _AUGMENTED.get(type(up.value.op), "assign")
        self._note(Kind.GRAD_WRITE, call.tensor, call, op=op)


def _roots(method: ast.Attribute) -> bool:
    """`p.grad.pow(2).sum().sqrt()` is a norm, spelled out."""
    return method.attr in ("pow", "square") and any(
        isinstance(up, ast.Attribute) and up.attr == "sum" for up in enclosing(method)
    )


def _reads_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "grad"
