"""Functions that call a model for its answer alone: they train nothing, and what comes out leaves the graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import last_name
from fallline.flow.modules import MODELS, bases_are, looks_like_model
from fallline.flow.recording import turns_off, under_no_grad
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, written
from fallline.syntax.once import once

__all__ = ["Answer", "answers", "left_in_train_mode", "recorded", "scripted"]

# Training, or a gradient that is wanted for something else (an attack, a force, an explanation), or a mode or recording that is chosen here.
_WANTS_GRADIENTS = re.compile(
    r"backward|\.step\(|zero_grad|requires_grad|autograd|\.grad\b|grad_enabled|enable_grad|gradient|no_grad|inference_mode|"
    r"volatile|onnx|jit\.(trace|script)|trace\(|optimi[sz]er|_is_training|create_graph|hessian|saliency|attack|adversar"
)
# The file turns recording off for everything in it, or leaves that to a framework.
_ELSEWHERE = ("set_grad_enabled(False", "__enter__(", "Lightning", "paddle")
_LIGHTNING = re.compile(r"\bpl\.")
_OTHER_FRAMEWORK = re.compile(r"import (jax|mxnet|tensorflow)")
_FROZEN = re.compile(r"requires_grad_\(False|requires_grad\s*=\s*False")
_NAMED = re.compile(
    r"(^|_)(infer|inference|predict|predictions?|proba|evaluate|evaluation|eval|validate|valid|validation|test|embed|encode|extract|features?|"
    r"transcribe|translate|recogni[sz]e|detect|synthesi[sz]e|score)(_|$)",
    re.I,
)
_OTHERWISE = re.compile(
    r"train|loss|forward|explore|rollout|collect|step_env|fit|monte|mc_|flops|macs|complexity|summary|profil|activation",
    re.I,
)
_ACTS = re.compile(r"action|(^|_)act(_|$)", re.I)
# What is kept of an action for the loss has to have its graph.
_KEPT_OF_ACTIONS = re.compile(
    r"log_?prob|logp|entrop|value|rsample|append|saved|buffer|memory|history"
)
_TESTS = re.compile(r"(?i)(^|_|(?<=[a-z]))(tester|evaluator|validator|predictor)$")
_PHASE = re.compile(r"(is_)?train(ing)?|mode|phase|backprop|optimi[sz]er|criterion_?opt")
_RUNS = re.compile(r"forward(_\w+)?|\w+_forward")
_LEAVES = frozenset({"numpy", "tolist", "item"})
_WRITES = re.compile(
    r"(.*\.)?(save_image|imsave|imwrite)|torchaudio\.save|(soundfile|sf|wavfile)\.write"
)
_SAMPLES = re.compile(r"(^|_)(sample|sampling|generate|generation|decode|reconstruct)(_|$)", re.I)
_RESTS = frozenset({"eval"})


@dataclass(frozen=True)
class Answer:
    """One such function and the first call of the model in it."""

    function: ast.FunctionDef
    call: ast.Call
    model: str


def answers(module: Module) -> Iterator[Answer]:
    """Those in which nothing wants a gradient and nothing says whether autograd records."""
    asked = _asked(module)
    for answer in asked:
        rests = _sets_mode(answer.function, answer.model, _RESTS)
        if not rests and (
            not _leaves(module, answer.function) or ".train()" in _body(module, answer.function)
        ):
            continue
        if _WANTS_GRADIENTS.search(_body(module, answer.function)):
            continue
        if _is_frozen(module, answer.function):
            continue
        if module.is_benchmark or _elsewhere(module.source.text):
            return
        yield answer


def _elsewhere(text: str) -> bool:
    """Somebody else turns recording off, or another framework is at work."""
    if any(map(text.__contains__, _ELSEWHERE)) or _OTHER_FRAMEWORK.search(text) is not None:
        return True
    return "pl." in text and _LIGHTNING.search(text) is not None  # a word is found at once


def scripted(module: Module) -> tuple[ast.Call, str] | None:
    """The first call of a model in a loop of a script that trains nothing, and the name of the model."""
    text = module.source.text
    if "torch" not in text or module.is_unit_test or module.is_benchmark:
        return None
    called = [c for c in _model_calls(module) if module.in_loop(c) and module.scope(c) is None]
    if not called or _elsewhere(text) or _WANTS_GRADIENTS.search(text) or _FROZEN.search(text):
        return None
    top = [c for c in module.all(ast.Call) if module.scope(c) is None]
    rests = {
        written(c.func.value)
        for c in top
        if isinstance(c.func, ast.Attribute) and c.func.attr == "eval"
    }
    asked = (c for c in called if _named(c) in rests or _leave(top))
    call = next(asked, None)
    return (call, _named(call)) if call is not None else None


def recorded(module: Module, answer: Answer) -> bool:
    """Neither the function nor anybody who is seen to call it turns recording off."""
    marks = " ".join(map(written, answer.function.decorator_list))
    if turns_off(answer.function) or re.search("grad|infer|eval|property|override", marks):
        return False
    if _is_driven(module, answer.function):
        return False
    return not _called_without_recording(module, answer.function, 3)


def left_in_train_mode(module: Module) -> Iterator[tuple[Answer, str]]:
    """Methods that leave the mode as it is, in a class that trains and whose other methods put the same model to rest, and the name of one of those."""
    for answer in _asked(module):
        cls = module.class_(answer.function)
        named = _NAMED.search(answer.function.name) or _SAMPLES.search(answer.function.name)
        if cls is None or not named or _ACTS.search(answer.function.name):
            continue
        if _sets_mode(answer.function, answer.model) or "backward" in _body(
            module, answer.function
        ):
            continue
        # `def eval(self): self.net.eval()`: callers choose the mode
        others = [m for m in methods_of(cls) if m is not answer.function]
        if any(m.name in {"eval", "train", "set_mode"} for m in others):
            continue
        resting = next((m for m in others if _sets_mode(m, answer.model, _RESTS)), None)
        trains = any(_sets_mode(m, answer.model, frozenset({"train"})) for m in others)
        if resting is None or not trains or _is_called_at_rest(cls, answer):
            continue
        yield answer, resting.name


@once
def _asked(module: Module) -> list[Answer]:
    """The functions that call a model and are not there to train it."""
    text = module.source.text
    if "torch" not in text or module.is_unit_test or "Lightning" in text:
        return []
    called = _model_calls(module)
    found: list[Answer] = []
    for function in module.all(ast.FunctionDef) if called else ():
        call = next(iter(module.index.inside(function, called)), None)
        if call is None or module.function(call) is not function:
            continue
        if _OTHERWISE.search(function.name) or _asks_which(function):
            continue
        if not _ACTS.search(function.name) or _only_acts(module, function):
            found.append(Answer(function, call, _named(call)))
    return found


def _only_acts(module: Module, function: ast.FunctionDef) -> bool:
    """It gives one action, as numbers, and keeps nothing of it."""
    if _KEPT_OF_ACTIONS.search(_body(module, function)):
        return False
    back = [b.value for b in below(function, ast.Return) if b.value is not None]
    return bool(back) and not any(isinstance(value, ast.Tuple) for value in back)


def _is_frozen(module: Module, function: ast.FunctionDef) -> bool:
    """What it runs may have been frozen where it was made: by the constructor, or anywhere in a file of functions."""
    cls = module.class_(function)
    made = (
        module.tree
        if cls is None
        else next((m for m in methods_of(cls) if m.name == "__init__"), None)
    )
    return (
        made is not None
        and _FROZEN.search(module.segment(made) if cls else module.source.text) is not None
    )


def _modules_by_use(module: Module) -> set[str]:
    """What this file asks for its parameters, fills with weights or puts to rest is a module, whatever its name."""
    asked = module.method_calls("parameters", "named_parameters", "eval", "load_state_dict")
    return {written(c.func.value) for c in asked if isinstance(c.func, ast.Attribute)} - {"self"}


@once
def _model_calls(module: Module) -> list[ast.Call]:
    by_use = _modules_by_use(module)
    last = {name.rpartition(".")[2] for name in by_use}
    hands_on = {name for _, name in _handing_on(module)}

    def likely(name: str) -> bool:
        said = name.endswith(MODELS) or "forward" in name
        return said or name in last or name in hands_on or name in {"", "self"}

    return [
        call
        for call in module.calls_named(likely)
        if (call.args or call.keywords)
        and (
            (last_name(call) in last and written(call.func) in by_use) or _calls_model(module, call)
        )
    ]


def _calls_model(module: Module, call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("self"), name) if (module.class_(call), name) in _handing_on(
            module
        ) and getattr(module.function(call), "name", "") != name:
            return True
        case ast.Attribute(of, name) if "forward" in name and _RUNS.fullmatch(name):
            return looks_like_model(of) or (is_name(of, "self") and _is_network(module, call))
        case ast.Name("self"):
            return _is_network(module, call)
        case ast.Subscript(of, ast.Constant(str())):
            return looks_like_model(of)
    return looks_like_model(call.func)


@once
def _handing_on(module: Module) -> set[tuple[ast.ClassDef | None, str]]:
    """`_forward` of `self._forward(batch)`, a method that returns what `self.model` says and does nothing else with it."""
    found: set[tuple[ast.ClassDef | None, str]] = set()
    for back in module.all(ast.Return):
        said = module.value(back.value) if back.value is not None else None
        if isinstance(said, ast.Call) and _is_own_model(said.func):
            method, cls = module.function(back), module.class_(back)
            if method is not None and cls is not None and module.parent(method) is cls:
                if not module.is_module_class(cls):
                    found.add((cls, method.name))
    return found


def _is_own_model(func: ast.expr) -> bool:
    """`self.model`, `self._model.forward`."""
    if isinstance(func, ast.Attribute) and _RUNS.fullmatch(func.attr):
        func = func.value
    match func:
        case ast.Attribute(ast.Name("self"), name):
            return looks_like_model(ast.Name(name.lstrip("_")))
    return False


def _is_network(module: Module, node: ast.AST) -> bool:
    cls = module.class_(node)
    return cls is not None and module.is_module_class(cls)


def _named(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(of, name) if _RUNS.fullmatch(name):
            return written(of)
    return written(call.func)


def _asks_which(function: ast.FunctionDef) -> bool:
    """`def epoch(loader, train=True)`: one function for both."""
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return any(_PHASE.fullmatch(a.arg) for a in given)


def _leaves(module: Module, function: ast.FunctionDef) -> bool:
    """What the model says is turned into plain numbers; by the name of the function, or as an array or a list."""
    calls = list(below(function, ast.Call))
    if _leave(calls):
        return True
    left = any(last_name(c) in _LEAVES for c in calls)
    return left and (_NAMED.search(function.name) is not None or _tests(module, function))


def _tests(module: Module, function: ast.FunctionDef) -> bool:
    """`class Tester`, `class ModelEvaluator`."""
    cls = module.class_(function)
    return cls is not None and _TESTS.search(cls.name) is not None


def _leave(calls: list[ast.Call]) -> bool:
    """Something becomes an array or a list, or is written to a file that holds no graph."""
    return any(
        last_name(c) in {"numpy", "tolist"} or _WRITES.fullmatch(written(c.func)) for c in calls
    )


def _body(module: Module, function: ast.FunctionDef) -> str:
    """Without its docstring, which may speak of anything."""
    return "\n".join(
        module.segment(s)
        for s in function.body
        if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    )


def _is_driven(module: Module, function: ast.FunctionDef) -> bool:
    """A method that a class of someone else calls: `class Task(Framework): def eval_step`."""
    cls = module.class_(function)
    if cls is None or not cls.bases or module.is_module_class(cls):
        return False
    return not bases_are(module, cls, _is_silent)


def _is_silent(home: Module, cls: ast.ClassDef) -> bool:
    """It turns no recording off."""
    return re.search(r"no_grad|inference_mode|grad_enabled", home.segment(cls)) is None


def _called_without_recording(module: Module, function: ast.FunctionDef, depth: int) -> bool:
    project = module.project
    others = project.beside(module, function.name.encode()) if project and depth == 3 else []
    for home in (module, *others):
        for call in home.all(ast.Call):
            if last_name(call) != function.name:
                continue
            if under_no_grad(home, call):
                return True
            up = home.function(call)
            if up is function or not isinstance(up, ast.FunctionDef) or home is not module:
                continue
            if depth and _called_without_recording(module, up, depth - 1):
                return True
    return False


def _sets_mode(function: ast.FunctionDef, model: str, modes: frozenset[str] | None = None) -> bool:
    """`self.model.eval()`, and `self.eval()` of the module that has it."""
    wanted = modes or frozenset({"eval", "train"})
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr in wanted
        and written(c.func.value) in {model, "self"}
        for c in below(function, ast.Call)
    )


def _is_called_at_rest(cls: ast.ClassDef, answer: Answer) -> bool:
    """A method that calls it, or one that calls that, has set the mode before."""
    around = [answer.function.name]
    for name in around:  # grows
        for method in methods_of(cls):
            if method.name in around:
                continue
            if any(
                isinstance(n, ast.Attribute) and n.attr == name and is_name(n.value, "self")
                for n in below(method, ast.Attribute)
            ):
                if _sets_mode(method, answer.model, _RESTS):
                    return True
                around.append(method.name)
    return False
