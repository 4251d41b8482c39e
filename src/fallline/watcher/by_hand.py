"""Gradients read and changed by hand: `p.grad.div_(k)`, `p.grad = None`, `p.grad.norm()`.

For the first updates accesses to `Tensor.grad` from the user's own lines are listened to; what the line does with the
gradient is read from its source. When the first updates show no such line, we leave, and `.grad` costs what it costs in torch.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

import torch

from fallline.events import Event, GradRead, GradWrite, ZeroGrad
from fallline.location import Location
from fallline.replay.source import attribute_at, enclosing
from fallline.taps.frames import locate
from fallline.taps.gradients import (
    GRADIENT_READ,
    GRADIENT_WRITTEN,
    GradientRead,
    GradientWritten,
    gradient_of,
)
from fallline.taps.pipelining import STAGE_SCALED, StageScaled
from fallline.taps.tap import Call, Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.fuse import Fuse
from fallline.watcher.objects import Objects

__all__ = ["ByHand"]

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
# whether a gradient is finite does not depend on what it is multiplied by
_TESTS = ("isnan", "isinf", "isfinite", "isneginf", "isposinf")
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
        "square",
        "pow",
    }
)
_NOISE = frozenset({"randn_like", "randn", "normal", "rand_like"})
# Attributes that hand the same gradient on.
_SAME = frozenset({"data", "detach", "float", "clone", "view", "flatten", "reshape", "double"})


class ByHand:
    """Turns accesses to `Tensor.grad` into events, for as long as there are any."""

    def __init__(self, emitter: Emitter, objects: Objects, taps: Subscription) -> None:
        self._emitter = emitter
        self._objects = objects
        self._taps = taps
        self._seen = False
        self.at: Location | None = None  # the last access; who asks also clears it

    def subscribe(self, fuse: Fuse) -> None:
        self._taps.before(GRADIENT_READ, fuse.guarded(self._read))
        self._taps.before(GRADIENT_WRITTEN, fuse.guarded(self._written))
        self._taps.after(STAGE_SCALED, fuse.guarded(self._scaled))

    def stepped(self, updates: int) -> None:
        """Nothing was done by hand in the first updates: get out of the way."""
        if updates == PROBED_UPDATES and not self._seen:
            self._taps.leave(GRADIENT_READ, GRADIENT_WRITTEN)

    def _read(self, call: GradientRead) -> None:
        tensor = call.tensor
        if gradient_of(tensor) is None:
            return
        self._touched(call)
        kind, fact = _meaning(call.frame)
        if kind is GradRead:
            if not isinstance(tensor, torch.nn.Parameter) and not self._objects.held(tensor):
                fact = "input"
            self._note(GradRead, tensor, call, what=fact)
        elif kind is ZeroGrad:
            self._note(ZeroGrad, tensor, call)
        elif kind is not None and not _of_step(call.frame):
            self._note(GradWrite, tensor, call, op=fact)

    def _touched(self, call: Call) -> None:
        frame = call.frame
        self.at = locate(frame.f_code, frame.f_lasti, frame.f_lineno)

    def _written(self, call: GradientWritten) -> None:
        self._touched(call)
        if call.value is None:
            self._note(ZeroGrad, call.tensor, call)
        elif not _of_step(call.frame):
            self._note(GradWrite, call.tensor, call, op=_written_by(call.frame))

    def _scaled(self, call: StageScaled) -> None:
        """A pipeline's schedule divides for the user, in a file of torch's."""
        here, callers = spot(call.place)
        parameters = self._objects.parameters(call.parameters)
        self._emitter.emit(GradWrite(here, callers=callers, op="div", parameter_set=parameters))

    def _note(self, event: type[Event], tensor: Any, call: Call, **facts: Any) -> None:
        self._seen = True
        frame = call.frame
        at = locate(frame.f_code, frame.f_lasti, frame.f_lineno)
        if not self._emitter.extends(event, at, tensor):
            here, callers = spot(call.place)
            self._emitter.open(event(here, callers=callers, **facts), tensor)


def _of_step(frame: FrameType) -> bool:
    """An optimizer of the user's own changes gradients while it steps (LARS, decay by hand): that is its step."""
    return frame.f_code.co_name == "step" and isinstance(
        frame.f_locals.get("self"), torch.optim.Optimizer
    )


def _written_by(frame: FrameType) -> str:
    """How the line makes the gradient that it assigns."""
    up = getattr(attribute_at(frame, "grad"), "parent", None)
    if isinstance(up, ast.AugAssign):
        return _AUGMENTED.get(type(up.op), "other")
    if isinstance(up, ast.Assign) and isinstance(up.value, ast.BinOp):
        left = up.value.left
        if isinstance(left, ast.Attribute) and left.attr == "grad":
            return _AUGMENTED.get(type(up.value.op), "assign")
    return "assign"


def _meaning(frame: FrameType) -> tuple[type[Event] | None, str]:
    """What the line does with the gradient it reads."""
    node = attribute_at(frame, "grad")
    if node is None:
        return GradRead, "use"
    here: ast.AST = node
    for up in enclosing(node):
        if isinstance(up, ast.Attribute):
            name = up.attr
            if name == "zero_":
                return ZeroGrad, "grad"
            if name in _INPLACE:
                return GradWrite, _inplace(name, up)
            if name in _NORMS:
                return GradRead, "norm"
            if name in _VALUES:
                return (GradRead, "norm" if _roots(up) else "value")
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
                *_TESTS,
            ):
                return None, ""
            if name.endswith("_") and not name.endswith("__"):
                return GradWrite, "other"
            if name not in _SAME:
                return GradRead, "value"
        elif isinstance(up, ast.Call):
            if here is not up.func:
                called = (
                    up.func.attr
                    if isinstance(up.func, ast.Attribute)
                    else getattr(up.func, "id", "")
                )
                if called in _TESTS:
                    return None, ""
                return (
                    GradRead,
                    "norm"
                    if called in _NORMS
                    else "value"
                    if called in _VALUES or called == "print"
                    else "use",
                )
        elif isinstance(up, ast.Compare | ast.BoolOp | ast.If | ast.IfExp | ast.While | ast.Assert):
            return None, ""  # `if p.grad is not None`
        elif isinstance(up, ast.AugAssign) and up.target is node:
            return None, ""  # the store that follows shows it
        elif isinstance(up, ast.stmt):
            if isinstance(up, ast.Assign) and any(_reads_own(t) for t in up.targets):
                return None, ""  # `p.grad = p.grad / k`: the store that follows shows it
            if (
                isinstance(up, ast.Assign)
                and isinstance(up.value, ast.Attribute)
                and up.value is node
            ):
                return None, ""  # `g = p.grad`: what happens to g is not seen
            return GradRead, "use"
        here = up
    return GradRead, "use"


def _inplace(name: str, method: ast.Attribute) -> str:
    call = getattr(method, "parent", None)
    if name in ("add_", "sub_") and isinstance(call, ast.Call):
        named = {
            n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for n in ast.walk(call)
        }
        if named & _NOISE:
            return "noise"
    return _INPLACE[name]


def _roots(method: ast.Attribute) -> bool:
    """`p.grad.pow(2).sum().sqrt()` is a norm, spelled out."""
    return method.attr in ("pow", "square") and any(
        isinstance(up, ast.Attribute) and up.attr == "sum" for up in enclosing(method)
    )


def _reads_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "grad"
