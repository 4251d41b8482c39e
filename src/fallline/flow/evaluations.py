"""Loops that evaluate a model, in files that train it and never put it into eval mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.modes import class_has_mode, made_with_mode
from fallline.flow.modules import module_class
from fallline.flow.recording import turns_off
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["never_in_eval_mode"]

_STEPS = re.compile(r"\.step\(")
# Somebody chooses a mode here in a way that does not say whose, or modes are said to be someone else's business.
_CHOOSES = re.compile(
    r"(self|model|module|net)\.training\b|\.training\s*=|(set|toggle|switch)_(train|eval|mode)|eval_mode|train_mode|LightningModule|"
    r"\.eval\b(?!\()|\.train\b(?!\()"
)
_EVALUATES = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|val|test)(_|$)", re.I
)
_TRAINING = re.compile(r"train|monte|mc_|uncertain|ensemble|calibrat", re.I)
_MODEL = re.compile(r"(^|_)(model|net|network|classifier)$")


def never_in_eval_mode(module: Module) -> Iterator[tuple[ast.For, bool]]:
    """Each such loop, and whether the model is seen to have layers that are different in eval mode."""
    text = module.source.text
    if ".backward(" not in text or not _STEPS.search(text) or _CHOOSES.search(text):
        return
    chosen = _modes_chosen(module)
    if chosen is None:
        return
    for loop in module.all(ast.For):
        model = _evaluated(module, loop)
        if model is None or last_name(model) in chosen or not _is_run_here(module, loop):
            continue
        has_mode = _has_mode(module, model)
        # a file that never says train() either may leave both to whoever calls it
        if has_mode is True or (has_mode is None and ".train()" in text):
            yield loop, has_mode is True


def _modes_chosen(module: Module) -> set[str] | None:
    """The names of the models that this file puts into eval mode; None where it cannot be seen which these are."""
    found: set[str] = set()
    for call in (*module.method_calls("eval"), *module.method_calls("train")):
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "train" and not call.args + call.keywords:
            continue
        named = {
            n.id if isinstance(n, ast.Name) else n.attr
            for n in below(call.func.value, ast.Name, ast.Attribute)
        }
        if named <= {"self", "m", "module", "layer"} or _goes_over(module, call.func.value):
            return None
        found |= named
    return found


def _goes_over(module: Module, receiver: ast.expr) -> bool:
    """`for net in nets: net.eval()`: which ones is not said by the name."""
    if isinstance(receiver, ast.Subscript):
        return True
    return isinstance(receiver, ast.Name) and any(
        isinstance(module.parent(b), ast.For | ast.comprehension | ast.Tuple)
        for b in module.bindings(receiver.id, module.scope(receiver))
    )


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
    return _model_called(calls) or _called_by_helper(module, calls)


def _model_called(calls: list[ast.Call]) -> ast.expr | None:
    return next((c.func for c in calls if c.args + c.keywords and _MODEL.search(_called(c))), None)


def _called_by_helper(module: Module, calls: list[ast.Call]) -> ast.expr | None:
    """`self._forward_pass(batch)`: the model that a method of the same class calls, without a backward."""
    for call in calls:
        match call.func:
            case ast.Attribute(ast.Name("self"), name):
                cls = module.class_(call)
                owner = module.qualname(cls) if cls is not None else ""
                helper = module.functions.get(f"{owner}.{name}")
            case _:
                continue
        inside = below(helper, ast.Call) if helper is not None else []
        model = _model_called(inside)
        if model is not None and not any(last_name(c) in {"backward", "step"} for c in inside):
            return model
    return None


def _called(call: ast.Call) -> str:
    """`model` of `model(x)`, of `self.model(x)` and of `args.model(x)`."""
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name(), name):
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
    """Through the calls of this file: `validate(loader, model)` is given what `main` made."""
    made = values_of(module).constructed(model)
    if made is None:
        made = _given(module, model)
    if made is None:
        return None
    if made_with_mode(module, made):
        return True
    cls = module_class(module, made.func)
    return class_has_mode(*cls) if cls is not None else None


def _given(module: Module, model: ast.expr) -> ast.Call | None:
    """What the one call of this file hands over under a parameter's name."""
    function = module.function(model)
    if not isinstance(model, ast.Name) or not isinstance(function, ast.FunctionDef):
        return None
    names = [a.arg for a in function.args.args]
    if model.id not in names:
        return None
    for call in values_of(module).calls_of(function):
        given = Module.argument(call, names.index(model.id), model.id)
        made = values_of(module).built(given) if given is not None else None
        if isinstance(made, ast.Call):
            return made
    return None
