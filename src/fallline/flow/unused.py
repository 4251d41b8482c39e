"""What a program leaves alone: classes and functions that nobody uses, and optional arguments that nobody gives."""

from __future__ import annotations

import ast
from pathlib import PurePath

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["given_by", "never_given", "nobody_uses", "optional"]


def nobody_uses(module: Module, node: ast.AST) -> bool:
    """The class or function around a node is one that nobody names: others import this file, and for something else."""
    outermost = next(
        (
            up
            for up in module.parents(node)
            if module.parent(up) is module.tree
            and isinstance(up, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        None,
    )
    if outermost is None or outermost.decorator_list or module.project is None:
        return False
    if _named(module, outermost.name, within=outermost):
        return False
    stem = PurePath(module.path).stem
    importers = [m for m in module.project.beside(module, stem.encode()) if _takes_from(m, stem)]
    return bool(importers) and not any(_named(m, outermost.name) for m in importers)


def _takes_from(module: Module, stem: str) -> bool:
    """`from losses import A`, by name: neither everything in it nor what a setting says."""
    return any((i.module or "").rpartition(".")[2] == stem for i in module.all(ast.ImportFrom))


def _named(module: Module, name: str, within: ast.AST | None = None) -> bool:
    """Whether a file uses a name, or could: `getattr`, `globals()` and `import *` may mean any."""
    inside = {id(n) for n in below(within, ast.Name)} if within is not None else set()
    for node in (*module.all(ast.Name), *module.all(ast.Attribute), *module.all(ast.alias)):
        match node:
            case ast.Name(used) if used in {name, "getattr", "globals", "eval"}:
                if id(node) not in inside:
                    return True
            case ast.Attribute(attr=used) | ast.alias(used) if used in {name, "*"}:
                return True
    return any(text.value == name for text in module.all(ast.Constant))


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
