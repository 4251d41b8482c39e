"""Functions that ask a model for its answer in a file that puts it into train mode and never back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import last_name
from fallline.flow.modes import made_has_mode
from fallline.flow.modules import bases_are
from fallline.flow.recording import turns_off, under_no_grad
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of, written

__all__ = ["NeverRests", "never_rests"]

# A mode that is chosen in a way that does not say whose, or by a wrapper or a framework.
_CHOOSES = re.compile(
    r"\.training\b|(set|toggle|switch|change)_(train|eval|mode)|eval_mode|train_mode|evaluating|eval_decorator|Lightning|"
    r"\.eval\b(?!\()|\.train\b(?!\()|\.train\(\w|getattr\([^()]+,\s*['\"]eval"
)
_ANSWERS = re.compile(
    r"(^|_)(eval|evaluate|evaluation|valid|validate|validation|val|test|infer|inference|predict|prediction|samples?|sampling|generate|generation|"
    r"translate|transcribe|synthesi[sz]e|reconstruct)(_|$)",
    re.I,
)
# For the training itself: what it learns from, what it explores with, noise that is wanted.
_OTHERWISE = re.compile(
    r"train|loss|forward|action|(^|_)act(_|$)|explor|rollout|collect|replay|buffer|negative|noise|target|monte|mc_|uncertain|ensemble|dropout|"
    r"calibrat|update_bn|batch_(sample|generate)|sample_batch|(^|_)data(_|$)|next_|_step_env",
    re.I,
)
_PHASE = re.compile(r"(is_)?train(ing)?|mode|phase|split|optimi[sz]er\w*")
_ROOTS = frozenset({"object", "ABC", "abc.ABC", "nn.Module", "torch.nn.Module"})


@dataclass(frozen=True)
class NeverRests:
    """The call of a model in such a function."""

    function: ast.FunctionDef
    call: ast.Call
    model: str
    has_mode: bool  # the model is seen to have layers that are different in eval mode


def never_rests(module: Module) -> Iterator[NeverRests]:
    """One for each function. Its name says that it evaluates or samples, it records nothing, and `train()` is called on the same model."""
    text = module.source.text
    if ".train()" not in text or module.is_unit_test or _CHOOSES.search(text):
        return
    trained = _trained(module)
    rests = {last_name(c.func.value) for c in module.method_calls("eval") if isinstance(c.func, ast.Attribute)}  # fmt: skip
    for function in module.all(ast.FunctionDef) if trained else ():
        if not _ANSWERS.search(function.name) or _OTHERWISE.search(function.name):
            continue
        call = _run(module, function, trained)
        if call is None:
            continue
        model = _model_of(call)
        if _sees_to_it(module, function, rests, model.rpartition(".")[2]):
            continue
        has_mode = _has_mode(module, call.func)
        if has_mode is not False:
            yield NeverRests(function, call, model, has_mode is True)


def _trained(module: Module) -> dict[str, set[ast.FunctionDef | None]]:
    """What `train()` is called on, as it is written, and where."""
    found: dict[str, set[ast.FunctionDef | None]] = {}
    for call in module.method_calls("train"):
        function = module.function(call)
        if isinstance(call.func, ast.Attribute) and not call.args + call.keywords:
            if isinstance(call.func.value, ast.Name | ast.Attribute):
                where = function if isinstance(function, ast.FunctionDef) else None
                found.setdefault(written(call.func.value), set()).add(where)
    found.pop("self", None)
    return found


def _run(
    module: Module, function: ast.FunctionDef, trained: dict[str, set[ast.FunctionDef | None]]
) -> ast.Call | None:
    """The first call of such a model that records nothing, in a function that trains nothing and is not told which mode it is in."""
    calls = below(function, ast.Call)
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    if any(_PHASE.fullmatch(a.arg) for a in given):
        return None
    if any(last_name(c) in {"backward", "zero_grad"} for c in calls):
        return None
    for call in calls:
        model = _model_of(call)
        places = trained.get(model)
        if places is None or not call.args + call.keywords or module.function(call) is not function:
            continue
        # `self.net` of another class of this file is a different network
        if model.startswith("self.") and not any(
            p is not None and module.class_(p) is module.class_(function) for p in places
        ):
            continue
        if function not in places and (turns_off(function) or under_no_grad(module, call)):
            return call
    return None


def _model_of(call: ast.Call) -> str:
    """`self.model` of `self.model(x)`, `self.model.generate(x)` and `self.model.module(x)`."""
    match call.func:
        case ast.Attribute(of, name) if name in {"forward", "module"} or _ANSWERS.search(name):
            return written(of)
    return written(call.func)


def _sees_to_it(module: Module, function: ast.FunctionDef, rests: set[str], model: str) -> bool:
    """Something in view may put the model to rest: this file, a base of the class, a decorator, or a file that calls the function."""
    if rests and (model in rests or rests & {"self", "", "m", "module", "net", "network"}):
        return True
    if any(last_name(mark) not in {"no_grad", "inference_mode", "staticmethod", "classmethod"} for mark in function.decorator_list):  # fmt: skip
        return True
    cls = module.class_(function)
    if cls is not None and not bases_are(module, cls, _is_silent, _ROOTS):
        return True
    project = module.project
    others = project.beside(module, function.name.encode()) if project is not None else []
    return any(".eval()" in other.source.text for other in others)


def _is_silent(home: Module, cls: ast.ClassDef) -> bool:
    """It puts nothing to rest."""
    return not any(".eval(" in home.segment(m) for m in methods_of(cls))


def _has_mode(module: Module, model: ast.expr) -> bool | None:
    made = values_of(module).constructed(model)
    return made_has_mode(module, made) if made is not None else None
