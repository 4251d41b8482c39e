"""Code that loads trained weights into a model it makes and runs it, and never leaves train mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fallline.flow.calls import last_name
from fallline.flow.modes import calls_with_mode, class_has_mode, made_has_mode, made_with_mode
from fallline.flow.modules import function_called, module_class
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, walk, written

__all__ = ["LeftOut", "left_out_of_rest", "run_in_train_mode"]

Place: TypeAlias = ast.FunctionDef | ast.ClassDef | ast.Module

# Somebody chooses a mode, or trains: then the weights are loaded to continue from, not to be used.
_CHOOSES_OR_TRAINS = re.compile(
    r"\.eval\b|\.train\(|\.training\b|eval_mode|train_mode|set_mode|_eval\(\)|\.backward\(|[Oo]ptimizer|optim\.|\.fit\(|Trainer|Lightning|trainer\b|"
    r"onnx|jit\.|quantiz|summary\("
)
_BY_NAME = re.compile(
    r"train|fit|resume|finetune|convert|export|merge|average|monte|mc_|uncertain", re.I
)
# Helpers that fill a model they are given: `load_checkpoint(path, model)`.
_LOADS = re.compile(
    r"^_?(load|restore)(_\w+)?_?(checkpoint|ckpt|model|weights?|state|snapshot|pretrained|params)\w*$"
)
_PRETRAINED = re.compile(r"\bpretrained\s*=\s*(?!False|None)|\bweights\s*=\s*(?!None)")
# Methods that only handle the model: they compute nothing from an input.
_HANDLES = frozenset(
    "load_state_dict state_dict to cuda cpu half float double parameters named_parameters modules named_modules children "
    "share_memory requires_grad_ apply register_forward_hook get_submodule zero_grad buffers named_buffers freeze "
    "load load_weights load_checkpoint load_model init_weights compile double bfloat16 type add_module".split()
)
# The same, by what they are called: `save_pretrained`, `push_to_hub`, `resize_token_embeddings`.
_HANDLES_TOO = re.compile(r"_?(save|push|export|write|dump|set|resize|tie|register|print|num)_")


def run_in_train_mode(module: Module) -> Iterator[ast.Call]:
    """The first call of each such model, whose layers are different in eval mode."""
    text = module.source.text
    if module.is_unit_test or not ("load" in text or "weights" in text or "pretrained" in text):
        return
    seen: set[tuple[Place, str]] = set()
    for load in _loads(module):
        place = _place(module, load)
        if place is None or _of_a_copy(load):
            continue
        for model, made in _made(module, place):
            name = written(model)
            if (place, name) in seen or not _concerns(module, load, model, made):
                continue
            if not _has_mode(module, made):
                continue
            seen.add((place, name))
            run = _run(module, place, name)
            if run is not None and not _probes(module, run):
                yield run


_MADE_UP = re.compile(r"\btorch\.(rand\w*|zeros|ones|empty|full|arange)\(")


def _probes(module: Module, run: ast.Call) -> bool:
    """`size = model(torch.zeros(1, 3, 224, 224)).shape[1]`: what goes in is made up, so nobody looks at the numbers that come out."""
    given = [*run.args, *(k.value for k in run.keywords)]
    return bool(given) and all(_MADE_UP.search(module.segment(module.value(a))) for a in given)


def _loads(module: Module) -> Iterator[ast.Call]:
    """Calls that fill a model with trained weights, and calls that make one that has them."""
    yield from module.method_calls("load_state_dict")
    made = [c for c in calls_with_mode(module) if _is_pretrained(module, c)]
    filled = [c for c in module.calls_named(_LOADS) if c.args and c not in made]
    yield from module.index.sorted(made + filled)


def _fills(call: ast.Call) -> bool:
    """`utils.load_checkpoint(path, model)`, `load_weights(model, path)`."""
    return bool(call.args) and _LOADS.search(last_name(call)) is not None


def _is_pretrained(module: Module, made: ast.Call) -> bool:
    return "pytorch_fid" in (module.resolve(made.func) or "") or bool(
        _PRETRAINED.search(module.segment(made))
    )


def _concerns(module: Module, load: ast.Call, model: ast.expr, made: ast.Call) -> bool:
    """Whether it is this model that a helper is given, or that is made with its weights."""
    match load.func:
        case ast.Attribute(attr="load_state_dict"):
            return True
    if _fills(load):
        return any(written(a) == written(model) for a in load.args)
    return made is load


def _place(module: Module, load: ast.Call) -> Place | None:
    """The function, class or script that owns the model, where nothing sets a mode and nothing trains."""
    function = module.function(load)
    if _is_of_self(module, load):
        cls = module.class_(load)
        part = cls is None or module.is_module_class(cls) or _is_part(cls)
        place: Place | None = None if part else cls
    else:
        place = function if isinstance(function, ast.FunctionDef) else module.tree
    if place is None or (not isinstance(place, ast.Module) and _BY_NAME.search(place.name)):
        return None
    text = module.source.text if isinstance(place, ast.Module) else module.segment(place)
    return None if _CHOOSES_OR_TRAINS.search(text) else place


def _is_part(cls: ast.ClassDef) -> bool:
    """A module, whatever it derives from: who holds it sets its mode."""
    return any(m.name == "forward" for m in methods_of(cls))


def _is_of_self(module: Module, load: ast.Call) -> bool:
    """`self.net.load_state_dict(...)`, `load_checkpoint(path, self.net)`, `self.net = resnet18(pretrained=True)`."""
    match load:
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self")), "load_state_dict")):
            return True
        case ast.Call(args=given) if _fills(load):
            return any(isinstance(a, ast.Attribute) and is_name(a.value, "self") for a in given)
    match module.statement(load):
        case ast.Assign([ast.Attribute(ast.Name("self"))]):
            return not isinstance(load.func, ast.Attribute) or load.func.attr != "load_state_dict"
    return False


def _of_a_copy(load: ast.Call) -> bool:
    """`target.load_state_dict(policy.state_dict())`: one network follows another; nothing is read from disk."""
    return any(last_name(n) == "state_dict" for n in below(load, ast.Call))


def _made(module: Module, place: Place) -> Iterator[tuple[ast.expr, ast.Call]]:
    """The models that are made in this place: `model = Net()`, `self.net = Net().cuda()`."""
    for statement in module.all(ast.Assign):
        match statement.targets:
            case [ast.Name() as target] if _scope(module, target) is place:
                pass
            case [ast.Attribute(ast.Name("self")) as target] if module.class_(target) is place:
                pass
            case _:
                continue
        made = values_of(module).built(statement.value)
        if isinstance(made, ast.Call):
            yield target, made


def _scope(module: Module, node: ast.AST) -> ast.AST:
    return module.scope(node) or module.tree


def _has_mode(module: Module, made: ast.Call) -> bool:
    """Its layers can be seen and some are different in eval mode, and its own code does not choose the mode."""
    if made_with_mode(module, made):
        return True
    found = module_class(module, made.func)
    if found is None or class_has_mode(*found) is not True:
        return False
    home, cls = found
    return re.search(r"\.eval\(\)|def train\(|\.train\(", home.segment(cls)) is None


def _run(module: Module, place: Place, name: str) -> ast.Call | None:
    """The first call that computes something with this model; None where it goes somewhere that cannot be seen."""
    found: list[ast.Call] = []
    for node in walk(place):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if written(node) != name or not _belongs(module, node, place):
            continue
        call = _call_of(module, node)
        if call is None:
            if _leaves(module, node):
                return None
        elif call.func is node or node is getattr(call.func, "value", None):
            if not _only_handles(module, call, node):
                found.append(call)
        elif not _fills(call):
            inside = _called_inside(module, call, node)
            if inside is None:
                return None
            found += [call] if inside else []
    return min(found, key=lambda c: c.lineno, default=None)


def _only_handles(module: Module, call: ast.Call, model: ast.expr) -> bool:
    """It computes nothing: by its name, or because nobody takes an answer, `model.reset_classifier(0)`."""
    method = last_name(call)
    told = call.func is not model and isinstance(module.parent(call), ast.Expr)
    return told or method in _HANDLES or _HANDLES_TOO.match(method) is not None


def _belongs(module: Module, node: ast.AST, place: Place) -> bool:
    return isinstance(place, ast.ClassDef) or _scope(module, node) is place


def _call_of(module: Module, node: ast.expr) -> ast.Call | None:
    """`model(x)`, `model.sample(x)`, `evaluate(model, x)`: the call that a use of the model is part of."""
    up = module.parent(node)
    if isinstance(up, ast.Attribute):
        up = module.parent(up)
    if isinstance(up, ast.keyword):
        up = module.parent(up)
    return up if isinstance(up, ast.Call) else None


def _leaves(module: Module, node: ast.expr) -> bool:
    """Returned, stored or put into a container: whoever gets it may set the mode."""
    match module.parent(node):
        case (
            ast.Attribute()
            | ast.If()
            | ast.Compare()
            | ast.FormattedValue()
            | ast.Delete()
            | ast.Expr()
        ):
            return False
    return True


def _called_inside(module: Module, call: ast.Call, model: ast.expr) -> bool | None:
    """Whether a function that is given the model runs it; None where it is not seen, or sets the mode."""
    if last_name(call) in {"print", "count_parameters", "isinstance", "hasattr", "len", "getattr"}:
        return False
    if last_name(call) in {"DataParallel"}:
        return False
    found = function_called(module, call.func)
    if found is None:
        return None
    home, function = found
    if _CHOOSES_OR_TRAINS.search(home.segment(function)) or _hands_on(function, call, model):
        return None
    given = _argument(function, call, model)
    return any(written(c.func) == given for c in below(function, ast.Call))


def _argument(function: ast.FunctionDef, call: ast.Call, model: ast.expr) -> str:
    """What the function calls the model it is given."""
    for keyword in call.keywords:
        if keyword.value is model and keyword.arg is not None:
            return keyword.arg
    places = [a.arg for a in function.args.args]
    at = next((i for i, a in enumerate(call.args) if a is model), len(places))
    return places[at] if at < len(places) else ""


def _hands_on(function: ast.FunctionDef, call: ast.Call, model: ast.expr) -> bool:
    """It gives the model to something else, which may set the mode."""
    given = _argument(function, call, model)
    return any(
        is_name(a, given)
        for c in below(function, ast.Call)
        for a in (*c.args, *(k.value for k in c.keywords))
    )


_TRAINS = re.compile(
    r"\.backward\(|zero_grad|\.step\(|\.fit\(|Trainer|Lightning|onnx|jit\.|quantiz"
)


@dataclass(frozen=True)
class LeftOut:
    """A model that is loaded beside one that is put to rest, and is not put to rest itself."""

    load: ast.Call
    model: str
    other: str
    has_mode: bool  # it is seen to have layers that are different in eval mode


def left_out_of_rest(module: Module) -> Iterator[LeftOut]:
    """Two models are loaded in one function and used for their answers; eval() is called on one of them."""
    loads = [c for c in module.method_calls("load_state_dict") if not _of_a_copy(c)]
    if module.is_unit_test or len(loads) < 2 or ".eval()" not in module.source.text:
        return
    seen: set[tuple[ast.AST, str]] = set()
    for load in loads:
        name, place = _loaded(load), _scope(module, load)
        if not name or (place, name) in seen or not isinstance(place, ast.FunctionDef | ast.Module):
            continue
        seen.add((place, name))
        beside = {_loaded(c) for c in loads if _scope(module, c) is place} - {"", name}
        other = _at_rest(module, place, name) & beside
        if not other or _says_its_mode(module, name) or not _is_used(module, place, name):
            continue
        has_mode = _mode_of(module, place, name)
        if has_mode is not False:
            yield LeftOut(load, name, min(other), has_mode is True)


def _loaded(load: ast.Call) -> str:
    """`model` of `model.load_state_dict(...)` and of `model.module.load_state_dict(...)`."""
    match load.func:
        case ast.Attribute(ast.Name(name)) | ast.Attribute(ast.Attribute(ast.Name(name), "module")):
            return name
    return ""


def _at_rest(module: Module, place: ast.FunctionDef | ast.Module, name: str) -> set[str]:
    """The names that eval() is called on here; none where something is trained, or where a mode may be meant for several."""
    text = module.source.text if isinstance(place, ast.Module) else module.segment(place)
    if _TRAINS.search(text) or re.search(r"optimi[sz]er|ema", name, re.I):
        return set()
    found: set[str] = set()
    for call in below(place, ast.Call):
        match call.func:
            case ast.Attribute(ast.Name(rests), "eval") if not _is_walked_over(module, rests, call):
                found.add(rests)
            case ast.Attribute(_, "eval" | "train"):
                return set()
    return found


def _is_walked_over(module: Module, name: str, use: ast.AST) -> bool:
    """`for net in (encoder, decoder): net.eval()`."""
    holders = [module.parent(b) for b in module.bindings(name, module.scope(use))]
    holders += [module.parent(h) for h in holders if isinstance(h, ast.Tuple)]
    return any(isinstance(h, ast.For | ast.comprehension) for h in holders)


def _says_its_mode(module: Module, name: str) -> bool:
    """Somewhere in this file, or in a function that is given it."""
    if re.search(rf"\b{re.escape(name)}(\.module)?\.(eval|train)\b|\b{re.escape(name)}\b.*\)\.eval\(\)", module.source.text):  # fmt: skip
        return True
    for node in module.all(ast.Call):
        if any(is_name(a, name) for a in (*node.args, *(k.value for k in node.keywords))):
            found = function_called(module, node.func)
            if found is not None and re.search(r"\.(eval|train)\(", found[0].segment(found[1])):
                return True
    return False


def _is_used(module: Module, place: ast.AST, name: str) -> bool:
    """It is called, or handed to something that is not there to look at it."""
    for node in below(place, ast.Call):
        given = [*node.args, *(k.value for k in node.keywords)]
        if is_name(node.func, name) or any(is_name(a, name) for a in given):
            if last_name(node) not in {"print", "DataParallel", "count_parameters", "len", "info"}:
                return True
        if isinstance(node.func, ast.Attribute) and is_name(node.func.value, name):
            if node.func.attr not in _HANDLES:
                return True
    return False


def _mode_of(module: Module, place: Place, name: str) -> bool | None:
    """Whether its layers are different in eval mode, as far as they can be seen."""
    makers = [made for target, made in _made(module, place) if written(target) == name]
    known = [made_has_mode(module, made) for made in makers]
    return True if True in known else False if known and None not in known else None
