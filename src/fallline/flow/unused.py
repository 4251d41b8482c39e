"""What the calls of a project give a function or a class, and the optional arguments that nobody gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.nodes import methods_of

__all__ = ["given_by", "given_to", "never_given", "optional"]

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
        Module.has_star(c) or name in given_by(c, function) for c in calls
    )


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
