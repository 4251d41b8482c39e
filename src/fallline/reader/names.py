"""What a module-level name stands for, found without running the module."""

from __future__ import annotations

import ast

from fallline import api
from fallline.api.values import Class, External, Function, Unknown, Value
from fallline.reader.machine import Machine
from fallline.syntax import Module

__all__ = ["defined", "find", "imported"]

_BUILTINS = frozenset(
    "__import__ abs all any bool callable dict dir divmod enumerate filter float format getattr hasattr hash id input int isinstance "
    "issubclass iter len list map max min next object open ord print property range repr reversed round set setattr slice "
    "sorted staticmethod str sum super tuple type vars zip".split()
)


def find(machine: Machine, module: Module, name: str) -> Value:
    """A module's own function, class, import or constant; unknown, with its name, otherwise."""
    if name in module.functions:
        return Function(module.functions[name], module)
    if name in module.classes:
        return Class(module.classes[name], module)
    if name in module.imports:
        return imported(machine, module, module.imports[name])
    bound = module.bindings(name, None)
    if len(bound) == 1 and isinstance(bound[0], ast.Name):
        return _constant(machine, module, bound[0], name)
    for star in module.star_imports:
        found = machine.project.find(f"{star}.{name}", module)
        if found is not None:
            return defined(machine, *found)
    if not bound and name in _BUILTINS:
        return External(f"builtins.{name}")
    return Unknown(name)


def imported(machine: Machine, module: Module, dotted: str) -> Value:
    """What an imported dotted name means: something of the project, or external. What is known of a library holds in its own repository too."""
    if api.function(dotted) is not None:
        return External(dotted)
    found = machine.project.find(dotted, module)
    return defined(machine, *found) if found is not None else External(dotted)


def defined(machine: Machine, home: Module, node: ast.AST) -> Value:
    machine.touched.add(home.path)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return Function(node, home)
    if isinstance(node, ast.ClassDef):
        return Class(node, home)
    if isinstance(node, ast.Name):
        return machine.global_name(home, node.id)
    return Unknown()


def _constant(machine: Machine, module: Module, target: ast.Name, name: str) -> Value:
    """The one value assigned at module level, evaluated on its own with no events."""
    if module.scope(target) is not None:
        return Unknown(name)
    up = module.parent(target)
    value = (
        up.value
        if isinstance(up, ast.Assign) and up.targets[0] is target
        else up.value
        if isinstance(up, ast.AnnAssign)
        else None
    )
    if value is None:
        return Unknown(name)
    frame = machine.module_frame(module)
    frame.names[name] = Unknown(name)  # for a name that stands for itself, round some corners
    with machine.looking(), machine.entered(frame):
        found = machine.evaluate(value)
    if isinstance(found, Unknown) and not found.hint:
        found.hint = name
    return found
