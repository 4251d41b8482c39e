"""Loops that evaluate a model, in files that put it into train mode and never into eval mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.modes import class_has_mode
from fallline.flow.modules import module_class
from fallline.flow.recording import turns_off
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["never_in_eval_mode"]

_TRAINS = re.compile(r"\.train\(\s*\)")
_STEPS = re.compile(r"\.backward\(|\.step\(")
# Somebody chooses a mode here, in whatever way; or modes are said to be someone else's business.
_CHOOSES = re.compile(
    r"\.eval\(|\.train\(\s*[^)\s]|(self|model|module|net)\.training\b|\.training\s*=|(set|toggle|switch)_(train|eval|mode)|eval_mode|train_mode|LightningModule|\.eval\b"
)
_EVALUATES = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|val|test)(_|$)", re.I
)
_TRAINING = re.compile(r"train|monte|mc_|uncertain|ensemble|calibrat", re.I)
_MODEL = re.compile(r"(^|_)(model|net|network|classifier)$")


def never_in_eval_mode(module: Module) -> Iterator[tuple[ast.For, bool]]:
    """Each such loop, and whether the model is seen to have layers that are different in eval mode."""
    text = module.source.text
    if _CHOOSES.search(text) or not _TRAINS.search(text) or not _STEPS.search(text):
        return
    for loop in module.all(ast.For):
        model = _evaluated(module, loop)
        if model is not None and _is_run_here(module, loop):
            has_mode = _has_mode(module, model)
            if has_mode is not False:
                yield loop, has_mode is True


def _evaluated(module: Module, loop: ast.For) -> ast.expr | None:
    """The model that a loop over data for evaluation calls, without a backward."""
    calls = below(loop, ast.Call)
    if any(last_name(c) in {"backward", "step"} for c in calls):
        return None
    function = module.function(loop)
    named = function.name if function is not None else ""
    over = [
        n.id if isinstance(n, ast.Name) else n.attr
        for n in below(loop.iter, ast.Name, ast.Attribute)
    ]
    by_data = any(_EVALUATES.search(n) and not _TRAINING.search(n) for n in over)
    by_name = _EVALUATES.search(named) and not _TRAINING.search(named)
    if not by_data and not (by_name and _without_gradient(module, loop)):
        return None
    return next((c.func for c in calls if c.args + c.keywords and _MODEL.search(_called(c))), None)


def _called(call: ast.Call) -> str:
    """`model` of `model(x)` and of `self.model(x)`."""
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            return name
    return ""


def _without_gradient(module: Module, node: ast.AST) -> bool:
    return any(map(turns_off, (node, *module.parents(node), *below(node, ast.With))))


def _is_run_here(module: Module, loop: ast.For) -> bool:
    """In a function that this file calls, or that trains itself, or outside all of them: who sets the mode is in view."""
    function = module.function(loop)
    if not isinstance(function, ast.FunctionDef):
        return function is None
    trains = any(last_name(c) == "backward" for c in below(function, ast.Call))
    return trains or bool(values_of(module).calls_of(function))


def _has_mode(module: Module, model: ast.expr) -> bool | None:
    made = values_of(module).constructed(model)
    cls = module_class(module, made.func) if made is not None else None
    return class_has_mode(*cls) if cls is not None else None
