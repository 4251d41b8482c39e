"""Who calls a function anywhere in the project, and what is passed for one of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.modules import module_class
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["callers_of", "passed_for"]

_FILES = 16


@once
def callers_of(module: Module, function: ast.FunctionDef) -> list[tuple[Module, ast.Call]]:
    """The calls of a function, of a method by its name, of a class whose constructor it is, or of the instances of one whose forward it is."""
    cls = module.parent(function)
    word = function.name
    of_instances = builds = False
    if isinstance(cls, ast.ClassDef):
        of_instances = function.name in {"forward", "__call__"}
        builds = function.name == "__init__"
        word = cls.name if of_instances or builds else word
    here = module.calls_by_last_name.get(word, []) if builds else values_of(module).calls_of(function)  # fmt: skip
    found = [(module, call) for call in here]
    project = module.project
    paths = [path for path, _ in project.naming(module, word)][:_FILES] if project else []
    for other in (project.module_at(path) for path in paths) if project is not None else ():
        if other is None or other is module:
            continue
        for call in other.calls_by_last_name.get(word, ()):
            if of_instances:
                found += [(other, c) for c in _calls_of_instance(other, call)]
            elif _fits(call, function):
                found.append((other, call))
    return [(m, c) for m, c in found if not builds or _may_build(m, c, module, cls)]


def passed_for(module: Module, name: ast.Name) -> Iterator[tuple[Module, ast.expr]]:
    """What the calls in the project pass for a name that is an argument of its function."""
    function = module.function(name)
    if not isinstance(function, ast.FunctionDef):
        return
    match module.bindings(name.id, function):
        case [ast.arg()]:
            pass
        case _:
            return
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    static = any(last_name(d) == "staticmethod" for d in function.decorator_list)
    method = isinstance(module.parent(function), ast.ClassDef) and not static
    if name.id not in names:
        return
    place = names.index(name.id) - method
    for home, call in callers_of(module, function):
        value = Module.argument(call, place, name.id) if place >= 0 else None
        if value is not None and not Module.has_star(call):
            yield home, value


def _calls_of_instance(other: Module, made: ast.Call) -> list[ast.Call]:
    """`Criterion()(x)`, and the calls of `criterion` after `criterion = Criterion().to(device)`."""
    match other.parent(made):
        case ast.Call() as direct if direct.func is made:
            return [direct]
        case ast.Assign([ast.Name(name) | ast.Attribute(attr=name)]):
            return other.calls_by_last_name.get(name, [])
        case ast.Attribute():
            match other.statement(made):
                case ast.Assign([ast.Name(name) | ast.Attribute(attr=name)]):
                    return other.calls_by_last_name.get(name, [])
    return []


def _may_build(home: Module, call: ast.Call, module: Module, cls: ast.AST | None) -> bool:
    """Not a different class of the same name."""
    found = module_class(home, call.func)
    return found is None or found[1] is cls or found[0].path == module.path


def _fits(call: ast.Call, function: ast.FunctionDef) -> bool:
    """Whether a call in another file gives a function of this name what it takes: others may be called the same."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    names = names[1:] if names[:1] == ["self"] else names
    every = {*names, *(a.arg for a in arguments.kwonlyargs)}
    unknown = (k.arg for k in call.keywords if k.arg is not None and k.arg not in every)
    return (arguments.vararg is not None or len(call.args) <= len(names)) and (
        arguments.kwarg is not None or not any(unknown)
    )
