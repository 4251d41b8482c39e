"""Classes of the project: their bases, and the methods they define or inherit."""

from __future__ import annotations

import ast
from typing import TypeAlias

from fallline.syntax.module import Module
from fallline.syntax.once import once

__all__ = ["Method", "base_classes", "find_method", "inherited"]

Method: TypeAlias = tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]


@once
def find_method(module: Module, cls: ast.ClassDef, name: str) -> Method | None:
    """A method of a class or of its bases in the project."""
    seen: set[int] = set()
    queue: list[tuple[Module, ast.ClassDef]] = [(module, cls)]
    while queue:
        home, here = queue.pop(0)
        if id(here) in seen:
            continue
        seen.add(id(here))
        for item in here.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
                return home, item
        queue += base_classes(home, here)
    return None


def inherited(module: Module, cls: ast.ClassDef) -> list[Method]:
    """The methods that a class has from its bases in the project, the nearest of each name, without those it overrides."""
    known = {m.name for m in cls.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)}
    found: list[Method] = []
    seen: set[int] = {id(cls)}
    queue = base_classes(module, cls)
    while queue:
        home, here = queue.pop(0)
        if id(here) in seen:
            continue
        seen.add(id(here))
        for item in here.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name not in known:
                known.add(item.name)
                found.append((home, item))
        queue += base_classes(home, here)
    return found


def base_classes(home: Module, cls: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
    """The bases of a class that are classes of the project."""
    found: list[tuple[Module, ast.ClassDef]] = []
    for base in cls.bases:
        target = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(target, ast.Name) and target.id in home.classes:
            found.append((home, home.classes[target.id]))
            continue
        name = home.resolve(target)
        there = (
            home.project.find(name, home) if name is not None and home.project is not None else None
        )
        if there is not None and isinstance(there[1], ast.ClassDef):
            found.append((there[0], there[1]))
    return found
