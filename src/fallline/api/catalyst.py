"""Catalyst: a Runner calls its `handle_batch` for every batch, and leaves backward, step and clear to it where it has them."""

from __future__ import annotations

import ast

from fallline.api.framework import call_at
from fallline.api.library import Driver, Library
from fallline.api.paper import Paper
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["LIBRARY"]


def _is_runner(module: Module, cls: ast.ClassDef) -> bool:
    bases = module.bases(cls)
    return any(b.startswith("catalyst.") and b.endswith("Runner") for b in bases)


def _train(paper: Paper, module: Module, cls: ast.ClassDef) -> None:
    """`runner.train(...)`: it is given the model, the optimizer and the criterion, which are attributes then."""
    handle = find_method(module, cls, "handle_batch")
    if handle is None:
        return
    me = paper.instance(module, cls)
    given = paper.given(handle[1])
    call = call_at(handle[1])
    call.args = [given[a.arg] for a in handle[1].args.args[1:]]
    for _ in paper.over(paper.make("loader", None), handle[1]):
        paper.run_method(me, "handle_batch", call)


LIBRARY = Library(drivers=(Driver(_is_runner, _train, "handle_batch"),))
