"""A parameter that was not finite before the forward pass began: whether the last step made it so, or what came after it.

Between a step and the next forward pass programs also write parameters by hand: an average is copied into the model, weights are
clipped or decayed, a checkpoint is loaded. A step is only blamed where it can have done it.
"""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Event
from fallline.location import Location
from fallline.replay.shards import is_finite
from fallline.replay.source import enclosing, over_parameters, statement_at
from fallline.syntax.nodes import below
from fallline.taps.frames import user_frames
from fallline.taps.tap import silence

__all__ = ["ORDINARY", "Stepped", "blame"]

ORDINARY = 1e12  # norms and learning rates below this make no infinity in one step

_WRITERS = frozenset(
    {"load_state_dict", "copy_to", "vector_to_parameters", "apply_shadow", "reset_parameters"}
)
_HARMLESS = frozenset(
    {"requires_grad_", "detach_", "zero_grad", "train", "eval", "parameters", "named_parameters"}
    | {"state_dict", "modules", "named_modules", "children", "buffers", "print", "len", "register_hook"}
)  # fmt: skip
_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


@dataclass(frozen=True, slots=True)
class Stepped:
    """The last step before a parameter was found not to be finite."""

    name: str  # of the optimizer that holds it; empty where none does
    optimizer: torch.optim.Optimizer | None
    event: Event
    updates: int  # of this optimizer so far
    ordinary: (
        bool  # gradients and learning rate were far from what carries a parameter out of its range
    )


def blame(parameter: Tensor, last: Stepped, call: Location | None) -> dict[str, Any]:
    """What is known of a parameter that was finite before the last step, and is not now. `call`: of the model, after it."""
    step, updates = last.event, last.updates
    with silence():
        made = step_made_it(last.optimizer, parameter, last.ordinary)
    facts: dict[str, Any] = {"optimizer": last.name or None}
    if made:
        eps = last.optimizer.param_groups[0].get("eps") if last.optimizer is not None else None
        if last.ordinary and isinstance(eps, int | float):
            facts["eps"] = eps
        return facts | {"step": updates - 1, "at": step.at, "op": "step"}
    lines = written_between(step, call, parameter)
    facts["between"] = [updates - 1, updates]
    facts["lines"] = [f"{at.path}:{at.line}" for at, _ in lines]
    if made is None:
        note = "the last update before it was noticed"
        return facts | {"step": updates - 1, "at": step.at, "op": "step", "note": note}
    facts |= {"step": updates, "note": "the step did not make it so"}
    if lines:
        facts["at"], facts["op"] = lines[0]
    return facts


def step_made_it(
    optimizer: torch.optim.Optimizer | None, parameter: Tensor, ordinary: bool
) -> bool | None:
    """Whether the last step wrote the NaN; None where that is not known.

    After an ordinary step what is left is a division in the optimizer itself (Adam with eps = 0), and that happens again when a
    copy of the parameter is stepped.
    """
    if optimizer is None:
        return False  # no optimizer holds it
    state = optimizer.state.get(parameter, {})
    kept = [v for v in state.values() if isinstance(v, Tensor) and v.is_floating_point()]
    if not all(map(is_finite, kept)):
        return True
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None  # what a step of the user's own does besides is not known
    try:
        again = _stepped_copy(optimizer, parameter, state)
    except Exception:  # LBFGS wants its closure
        return None
    if not is_finite(again):
        return True
    return False if ordinary else None


def _stepped_copy(
    optimizer: torch.optim.Optimizer, parameter: Tensor, state: dict[str, Any]
) -> Tensor:
    """What is finite of the parameter, after one more step of its own."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    twin = nn.Parameter(_finite(parameter))
    twin.grad = _finite(
        gradient
    )  # on an accelerator it may be of the update after: not finite for that alone
    again = copy.copy(optimizer)
    again.param_groups = [{**group, "params": [twin]}]
    kept = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
    again.state = defaultdict(dict, {twin: kept})
    again.step()
    return twin.detach()


def _finite(tensor: Tensor) -> Tensor:
    """A copy, with zeros for what is not finite."""
    plain = tensor.detach()
    return torch.where(torch.isfinite(plain), plain, torch.zeros_like(plain))


def written_between(
    step: Event, call: Location | None, parameter: Tensor
) -> list[tuple[Location, str]]:
    """Lines after the step, round the loop and up to the model call, that can have written this parameter, and by what."""
    sure: list[tuple[Location, str]] = []
    possible: list[tuple[Location, str]] = []
    for at in (step.at, *reversed(step.callers)):
        values = _values(at)
        looped, statements = _after(at, call)
        for statement in statements:
            here = Location(
                at.path, statement.lineno, statement.col_offset + 1, function=at.function
            )
            if (how := _writes(statement, here, values, parameter)) is not None:
                sure.append((here, how))
            elif (how := _is_given(statement, values, parameter)) is not None:
                possible.append((here, how))
        if looped:
            break
    return sure or possible


def _values(at: Location) -> dict[str, Any]:
    """What the names stand for in the function of this line, where it has not returned."""
    name = at.function or "<module>"
    for frame in user_frames():
        if frame.f_code.co_qualname == name and frame.f_code.co_filename.endswith(at.path):
            return dict(frame.f_locals)
    return {}


def _after(at: Location, call: Location | None) -> tuple[bool, list[ast.stmt]]:
    """Statements that come after this line, in its loop or else in its function; whether it is in a loop."""
    statement = statement_at(at.path, at.line)
    if statement is None:
        return False, []
    around: ast.AST | None = None
    for up in enclosing(statement):
        around = up
        if isinstance(up, (*_LOOPS, *_FUNCTIONS)):
            break
    looped = isinstance(around, _LOOPS)
    same = call is not None and call.path == at.path and call.function == at.function
    until = call.line if same and call is not None and call.line < at.line else 0
    found = []
    for node in ast.walk(around) if around is not None else ():
        if not isinstance(node, ast.stmt) or node is around or hasattr(node, "body"):
            continue
        later = (node.lineno, node.col_offset) > (statement.lineno, statement.col_offset)
        if later or (looped and node.lineno < until):
            found.append(node)
    return looped, sorted(found, key=lambda s: (s.lineno < at.line, s.lineno, s.col_offset))


def _writes(
    statement: ast.stmt, at: Location, values: dict[str, Any], parameter: Tensor
) -> str | None:
    """`p.mul_(2)`, `model.load_state_dict(...)`, `p.data = ...`, `layer.weight[0] = ...`, `p *= 2` for each parameter."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, ast.Name):
                if isinstance(statement, ast.AugAssign) and over_parameters(at):
                    return type(statement.op).__name__.lower()
            elif below(target, ast.Attribute):
                if _concerns(target, values, parameter) and "grad" not in _attributes(target):
                    return "assignment"
    for call in (n for n in below(statement, ast.Call)):
        name = _called(call)
        in_place = name.endswith("_") and not name.endswith("__")
        if name in _HARMLESS or not (in_place or name in _WRITERS):
            continue
        if "grad" not in _attributes(call.func) and _concerns(call, values, parameter):
            return name.rstrip("_")
    return None


def _is_given(statement: ast.stmt, values: dict[str, Any], parameter: Tensor) -> str | None:
    """A call that is given the model, or is one of its methods: what it does is not seen."""
    for call in (n for n in below(statement, ast.Call)):
        func, name = call.func, _called(call)
        forward = isinstance(func, ast.Name) and isinstance(values.get(func.id), nn.Module)
        named = (values.get(n.id) for n in below(call, ast.Name))
        if name not in _HARMLESS and not forward and any(_holds(v, parameter) for v in named):
            return name
    return None


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _concerns(node: ast.expr, values: dict[str, Any], parameter: Tensor) -> bool:
    """Whether what is written can be this parameter: a name in it stands for it, for a model with it, or for nothing known."""
    roots = [values[n.id] for n in below(node, ast.Name) if n.id in values]
    concerned = [v for v in roots if isinstance(v, Tensor | nn.Module)]
    return not concerned or any(
        isinstance(v, nn.Parameter) or _holds(v, parameter) for v in concerned
    )


def _holds(value: Any, parameter: Tensor) -> bool:
    if isinstance(value, nn.Module):
        return any(p is parameter for p in value.parameters())
    return value is parameter


def _attributes(node: ast.AST) -> Iterator[str]:
    return (n.attr for n in below(node, ast.Attribute))
