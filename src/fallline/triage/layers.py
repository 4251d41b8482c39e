"""How the modules of a pasted program are made: layers that no module holds, parameters that are none, classes that are no modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.syntax.nodes import below, methods_of
from fallline.triage.calls import Facts, at, calls, keyword, name_of, owner_of
from fallline.triage.point import quoted

__all__ = ["of_layers"]

_TRAINED = re.compile(
    r"^(?:Lazy)?(?:Linear|Bilinear|Conv\w+\d?d?|Embedding|EmbeddingBag|LSTM|GRU|RNN|LSTMCell|GRUCell|BatchNorm\dd|LayerNorm|GroupNorm|MultiheadAttention|Transformer\w*|Sequential|ModuleList)$"
)
_MODULE = re.compile(r"Module$")
_MAKES = re.compile(r"^(?:__init__|_*(?:build|make|create|init|setup|configure|get|add)\w*)$")
_NOT_INIT = frozenset({"_init_", "__init_", "_init__", "__int__", "__inti__", "_int_", "__ini__"})
_MOVES = frozenset({"cuda", "to", "cpu", "half", "float", "double", "type"})
_WEIGHT = re.compile(r"(?i)^self\.(?:w|b|u|v|theta|beta|alpha|gamma|coef\w*)(?:_?\w{0,6}\d*)?$|weight|bias|kernel|centers?$|embed")  # fmt: skip
_TENSORS = frozenset({"randn", "rand", "zeros", "ones", "tensor", "Tensor", "FloatTensor", "empty", "full", "from_numpy", "view", "reshape", "Variable", "load"})  # fmt: skip


def of_layers(tree: ast.Module) -> Facts:
    """All facts about the modules of a program, each where it is seen first."""
    found: Facts = {}
    for cls in below(tree, ast.ClassDef):
        if any(_MODULE.search(ast.unparse(base)) for base in cls.bases):
            for name, read in _of_module(cls):
                found.setdefault(name, {**read, "cls": cls.name})
        elif not cls.bases and any(m.name == "forward" for m in methods_of(cls)):
            found.setdefault("class of no module", {"cls": cls.name, "cls_line": str(cls.lineno)})
    for name, read in (*_parameters(tree), *_optimizers(tree)):
        found.setdefault(name, read)
    return found


def _of_module(cls: ast.ClassDef) -> Iterator[tuple[str, dict[str, str]]]:
    methods = methods_of(cls)
    makes = next((m for m in methods if m.name == "__init__"), None)
    wrong = next((m for m in methods if m.name in _NOT_INIT), None)
    if makes is None and wrong is not None:
        yield "init misspelt", {"init": wrong.name, "init_line": str(wrong.lineno)}
    if makes is not None:
        yield from _in_locals(makes)
    for method in methods:
        if not _MAKES.match(method.name):
            yield from _made_when_called(method)
    held = [c for c in below(cls, ast.Call) if _TRAINED.match(name_of(c)) or name_of(c) == "Parameter"]  # fmt: skip
    if makes is not None and not held:
        yield from _plain_tensors(makes)


def _layer(node: ast.expr) -> bool:
    match node:
        case ast.Call() as call:
            return _TRAINED.match(name_of(call)) is not None and not owner_of(call).startswith("self")  # fmt: skip
    return False


def _in_locals(makes: ast.FunctionDef) -> Iterator[tuple[str, dict[str, str]]]:
    """A layer that `__init__` gives to a name of its own and to nothing else."""
    used = {n.id for n in below(makes, ast.Name) if ast.unparse(n) and n.ctx.__class__ is ast.Load}
    for statement in below(makes, ast.Assign):
        target = ast.unparse(statement.targets[0])
        if target.isidentifier() and _layer(statement.value) and target not in used:
            meant = f"self.{target.removeprefix('self').lstrip('_') or target}"
            yield "layer in a local", at("layer", statement, local=target, meant=meant)


def _made_when_called(method: ast.FunctionDef) -> Iterator[tuple[str, dict[str, str]]]:
    """A layer that is made anew in every call: `nn.Linear(8, 32)(x)`, or a name of the method that is then called."""
    called = {ast.unparse(c.func) for c in below(method, ast.Call)}
    for call in below(method, ast.Call):
        if _layer(call.func):
            yield "layer made when called", at("layer", call, method=method.name)
    for statement in below(method, ast.Assign):
        if _layer(statement.value) and ast.unparse(statement.targets[0]) in called:
            yield "layer made when called", at("layer", statement, method=method.name)


def _plain_tensors(makes: ast.FunctionDef) -> Iterator[tuple[str, dict[str, str]]]:
    """Tensors that are meant to be weights, in a module that has neither layers nor parameters."""
    for statement in below(makes, ast.Assign):
        target = ast.unparse(statement.targets[0])
        made = {name_of(c) for c in below(statement.value, ast.Call)}
        if (
            target.startswith("self.")
            and _WEIGHT.search(target)
            and (made & _TENSORS or "[" in ast.unparse(statement.value))
        ):
            yield "weight of no parameter", at("weight", statement, attribute=target)


def _parameters(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """A parameter that is moved or converted where it is made: the result is a tensor that was computed."""
    for call in calls(tree, *_MOVES):
        match call.func:
            case ast.Attribute(value=ast.Call() as made, attr=move) if name_of(made) == "Parameter":
                inner = quoted(made.args[0]) if made.args else "..."
                rest = ", ".join(map(ast.unparse, call.args))
                yield "parameter moved", at("moved", call, made=inner, move=f"{move}({rest})")


def _optimizers(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """What optimizers are given: an iterator that can be read once, or the parameters of a model that the program never uses."""
    once = {}
    for statement in below(tree, ast.Assign):
        value = statement.value
        lazy = value.__class__ is ast.GeneratorExp or (value.__class__ is ast.Call and ast.unparse(value).startswith(("filter(", "map(")))  # fmt: skip
        if lazy and "parameters()" in ast.unparse(value):
            once[ast.unparse(statement.targets[0])] = statement
    for call in below(tree, ast.Call):
        given = call.args[0] if call.args else keyword(call, "params")
        if given is None or not (keyword(call, "lr") or "optim" in ast.unparse(call.func).lower()):
            continue
        if ast.unparse(given) in once:
            yield "parameters read once", at("once", once[ast.unparse(given)], name=ast.unparse(given))  # fmt: skip
        match given:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=model), attr="parameters")):
                if (other := _another(tree, model)) is not None:
                    yield "optimizer of another", at("optimizer", call, model=model, other=other)


def _another(tree: ast.Module, model: str) -> str | None:
    """The one model that a loop with a backward calls, where the other one is only given to its optimizer."""
    names = [n for n in below(tree, ast.Name) if n.id == model]
    parameters = [c for c in calls(tree, "parameters") if owner_of(c) == model]
    loaded = [n for n in names if n.ctx.__class__ is ast.Load]
    if len(loaded) > len(parameters):
        return None
    trained = {
        ast.unparse(c.func)
        for loop in below(tree, ast.For, ast.While)
        if calls(loop, "backward")
        for statement in below(loop, ast.Assign)
        for c in below(statement.value, ast.Call)
        if c.func.__class__ is ast.Name and c.args
    }
    modes = {owner_of(c) for c in calls(tree, "train", "eval", "to", "cuda", "state_dict")}
    made = {ast.unparse(t) for a in below(tree, ast.Assign) for t in a.targets if a.value.__class__ is ast.Call}  # fmt: skip
    alike = {name for name in trained if re.match(r"(?i)\w*(?:model|net)\w*$", name)}
    others = [name for name in alike | (trained & modes & made) if name != model]
    return others[0] if len(others) == 1 else None
