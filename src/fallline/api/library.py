"""One library, as the reader knows it: what its functions, methods and attributes do, and the loops it runs itself.

A library is one file in this folder with a `LIBRARY`. `fallline.api.__init__` gathers them; nothing else is touched.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fallline.api.call import Call
from fallline.api.paper import Paper
from fallline.api.values import Thing, Value
from fallline.syntax import Module

__all__ = ["Driver", "Library"]

Function: TypeAlias = Callable[[Paper, Call], Value]
Family: TypeAlias = Callable[[Paper, Call, str], Value | None]
Method: TypeAlias = Callable[[Paper, Thing, Call], Value]
AnyMethod: TypeAlias = Callable[[Paper, Thing, str, Call], Value | None]
Attribute: TypeAlias = Callable[[Paper, Thing], Value | None]


@dataclass(frozen=True)
class Driver:
    """A loop that a framework runs over a class of the program: Lightning's fit, the Trainer's train."""

    drives: Callable[[Module, ast.ClassDef], bool]
    run: Callable[[Paper, Module, ast.ClassDef], None]
    method: str = (
        ""  # the one it calls; "": it owns the class, and nothing else in it is begun on its own
    )


@dataclass(frozen=True)
class Library:
    """What is known about one library. A handler that returns None leaves the call to others."""

    # by dotted name: `torch.nn.utils.clip_grad_norm_`
    functions: Mapping[str, Function] = field(default_factory=dict)
    # by pattern of the dotted name, tried in order; they get the dotted name too
    families: tuple[tuple[re.Pattern[str], Family], ...] = ()
    # by kind of object and name; an unknown object that is called like one of the kind has them too
    methods: Mapping[tuple[str, str], Method] = field(default_factory=dict)
    # methods that a class of the program inherits
    inherited: Mapping[tuple[str, str], Method] = field(default_factory=dict)
    # any other method of a kind of object
    any_method: Mapping[str, AnyMethod] = field(default_factory=dict)
    attributes: Mapping[tuple[str, str], Attribute] = field(default_factory=dict)
    # `super().name(...)` in a class of the program
    overridden: Mapping[str, Method] = field(default_factory=dict)
    drivers: tuple[Driver, ...] = ()
