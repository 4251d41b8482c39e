"""What the calls of torch and of each framework do, one file (or folder) a library. Never imports them.

Each has a `LIBRARY`; `libraries()` finds them by walking this folder, so that a new framework is one file.
The reader asks by dotted name, by kind of object and method name, or by attribute.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache, lru_cache

from fallline.api.library import (
    AnyMethod,
    Attribute,
    Driver,
    Family,
    Function,
    Library,
    Method,
)

__all__ = [
    "any_method",
    "attribute",
    "drivers",
    "families",
    "function",
    "inherited",
    "libraries",
    "method",
    "overridden",
]


@cache
def libraries() -> tuple[Library, ...]:
    """Every library in this folder, by file name."""
    found = []
    for info in pkgutil.iter_modules(__path__, __name__ + "."):
        library = getattr(importlib.import_module(info.name), "LIBRARY", None)
        if isinstance(library, Library):
            found.append(library)
    return tuple(found)


@cache
def _functions() -> dict[str, Function]:
    return {name: do for library in libraries() for name, do in library.functions.items()}


@cache
def _methods() -> dict[tuple[str, str], Method]:
    return {key: do for library in libraries() for key, do in library.methods.items()}


@cache
def _inherited() -> dict[tuple[str, str], Method]:
    return {key: do for library in libraries() for key, do in library.inherited.items()}


@cache
def _any_methods() -> dict[str, AnyMethod]:
    return {kind: do for library in libraries() for kind, do in library.any_method.items()}


@cache
def _attributes() -> dict[tuple[str, str], Attribute]:
    return {key: get for library in libraries() for key, get in library.attributes.items()}


@cache
def _overridden() -> dict[str, Method]:
    return {name: do for library in libraries() for name, do in library.overridden.items()}


def function(name: str) -> Function | None:
    """The function of this dotted name."""
    return _functions().get(name)


@lru_cache(8192)
def families(name: str) -> tuple[Family, ...]:
    """What a dotted name may be, by its form. Programs use few names, again and again."""
    return tuple(
        do for library in libraries() for form, do in library.families if form.search(name)
    )


def method(kind: str, name: str) -> Method | None:
    """A method of a kind of training object."""
    return _methods().get((kind, name))


def inherited(kind: str, name: str) -> Method | None:
    """A method that a class of the program inherits from a framework."""
    return _inherited().get((kind, name))


def any_method(kind: str) -> AnyMethod | None:
    """What any other method of this kind of object does."""
    return _any_methods().get(kind)


def attribute(kind: str, name: str) -> Attribute | None:
    return _attributes().get((kind, name))


def overridden(name: str) -> Method | None:
    """What `super().name(...)` does where the base is a framework's."""
    return _overridden().get(name)


@cache
def drivers() -> tuple[Driver, ...]:
    """The loops that frameworks run themselves."""
    return tuple(driver for library in libraries() for driver in library.drivers)
