"""What the calls of a project give a function or a class, and the optional arguments that nobody gives."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.makers import SHAPE_OPS
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of

__all__ = ["given_by", "given_to", "in_an_arm_for_nobody", "never_given", "optional"]

_MOST = 24  # files that are looked into


def never_given(module: Module, node: ast.AST) -> bool:
    """`scheduler` of `def train(model, scheduler=None)` where every call leaves it out."""
    function = module.function(node)
    name = node.id if isinstance(node, ast.Name) else ""
    if not isinstance(function, ast.FunctionDef) or name not in optional(function):
        return False
    if any(not isinstance(b, ast.arg) for b in module.bindings(name, function)):
        return False
    beside = module.project.beside(module, function.name.encode()) if module.project else []
    calls = [c for m in (module, *beside) for c in m.all(ast.Call)]
    calls = [c for c in calls if last_name(c) == function.name]
    return bool(calls) and not any(
        Module.has_star(c) or (name in given_by(c, function) and not _gives_none(c, function, name))
        for c in calls
    )


def in_an_arm_for_nobody(module: Module, line: int) -> bool:
    """`if mask is not None:` in `def forward(self, x, mask=None)`, where no call in the project hands a mask to anything that could be this layer."""
    for test in module.all(ast.If):
        match test.test:
            case ast.Compare(ast.Name(name), [ast.IsNot()], [ast.Constant(None)]):
                if test.lineno < line <= (test.body[-1].end_lineno or 0):
                    if _handed_to_nobody(module, module.function(test), name, frozenset()):
                        return True
    return False


def _handed_to_nobody(
    module: Module, function: ast.AST | None, name: str, asked: frozenset[int]
) -> bool:
    match function:
        case ast.FunctionDef("forward") if name in optional(function):
            cls = module.class_(function)
        case _:
            return False
    rebound = [b for b in module.bindings(name, function) if not isinstance(b, ast.arg)]
    project = module.project
    if id(function) in asked:
        return True  # it hands on what it was handed itself
    if cls is None or project is None:
        return False
    first = min((b.lineno for b in rebound if isinstance(b, ast.Name)), default=None)
    tests = [t.lineno for t in below(function, ast.If) if name in ast.unparse(t.test)]
    if first is not None and (not tests or first < min(tests)):
        return False
    place = [a.arg for a in function.args.args].index(name) - 1
    whole = re.compile(rf"\b{cls.name}\b")
    paths = [p for p, text in project.naming(module, cls.name) if whole.search(text)][:_MOST]
    others = [m for p in paths if (m := project.module_at(p)) is not None]
    # a file with a class of that name of its own means that one
    homes = [module, *(m for m in others if cls.name not in m.classes)]
    return not any(
        _may_hand(home, call, name, place, asked | {id(function)})
        for home in homes
        for call in home.all(ast.Call)
    )


def _may_hand(home: Module, call: ast.Call, name: str, place: int, asked: frozenset[int]) -> bool:
    """Whether a call could hand a layer this argument: by its name, by its place, or among others."""
    match call.func:
        case ast.Name(callee) if callee in home.functions or hasattr(builtins, callee):
            return False
        case ast.Attribute(ast.Name("self") | ast.Attribute(), attr) if attr not in SHAPE_OPS:
            by_place = True
        case ast.Subscript():
            by_place = True  # `self.layers[i](x, mask)`
        case ast.Name(callee):
            by_place = callee[:1].islower()
        case _:
            by_place = False  # a method of a tensor
    if home.resolve(call.func) is not None:
        return False
    handed = next((k.value for k in call.keywords if k.arg == name), None)
    if handed is None and by_place and place < len(call.args):
        handed = call.args[place]
    match handed:
        case None:
            # `**kwargs` of a wrapper hands on what a call gave it by name
            return any(isinstance(a, ast.Starred) for a in call.args) and by_place
        case ast.Constant(None):
            return False
        case ast.Name(passed):
            return not _handed_to_nobody(home, home.function(call), passed, asked)
    return True


def _gives_none(call: ast.Call, function: ast.FunctionDef, name: str) -> bool:
    """`train(loader, model, None)`: as if it were left out."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    names = names[1:] if names[:1] == ["self"] and isinstance(call.func, ast.Attribute) else names
    given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    said = [value for argument, value in given if argument == name]
    return all(isinstance(v, ast.Constant) and v.value is None for v in said)


def given_to(
    module: Module, cls: ast.ClassDef, name: str
) -> Iterator[tuple[Module, ast.expr | None]]:
    """What each call of a class in the project gives an argument of its constructor, by name, by position or by default; None where it cannot be seen."""
    made = next((m for m in methods_of(cls) if m.name == "__init__"), None)
    names = [a.arg for a in made.args.args] if made is not None else []
    if made is None or name not in names:
        return
    place = names.index(name)
    defaults = dict(zip(reversed(names), reversed(made.args.defaults), strict=False))
    project = module.project
    paths = [path for path, _ in project.naming(module, cls.name)] if project is not None else []
    others = [project.module_at(path) for path in paths[:_MOST]] if project is not None else []
    for home in (module, *(other for other in others if other is not None)):
        if home is not module and any(c.name == cls.name for c in home.all(ast.ClassDef)):
            continue  # it has a class of that name of its own
        for call in home.all(ast.Call):
            if last_name(call) == cls.name:
                said = Module.argument(call, place - 1, name)
                unseen = Module.has_star(call) or (said is None and name not in defaults)
                yield (home, None) if unseen else (home, said or defaults[name])
        if any(last_name(base) == cls.name for c in home.all(ast.ClassDef) for base in c.bases):
            yield home, None  # what a class made of it gives is not looked into


def given_by(call: ast.Call, function: ast.FunctionDef) -> set[str]:
    """The names of the parameters that a call gives a value."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    names = names[1:] if names[:1] == ["self"] and isinstance(call.func, ast.Attribute) else names
    return set(names[: len(call.args)]) | {k.arg for k in call.keywords if k.arg is not None}


def optional(function: ast.FunctionDef) -> set[str]:
    """Parameters that are None where nobody gives them."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    pairs = list(zip(reversed(names), reversed(function.args.defaults), strict=False))
    pairs += [
        (a.arg, d)
        for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if d is not None
    ]
    return {
        n for n, default in pairs if isinstance(default, ast.Constant) and default.value is None
    }
