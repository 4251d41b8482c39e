"""Random draws of a module that decide what is dropped, by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import chained_on, last_name
from fallline.syntax import Module
from fallline.syntax.nodes import methods_of, walk

__all__ = ["drawn_in_every_mode"]

_DRAWS = frozenset({"bernoulli", "bernoulli_", "rand", "rand_like", "random"})
_DROPS = re.compile(r"drop(?!_last)|survival", re.IGNORECASE)
_ON_PURPOSE = re.compile(
    r"augment|mc_|monte|uncertain|nois|corrupt|perturb|bayes|pre_?net|sampl|transform|diffusion|guidance|cond",
    re.IGNORECASE,
)


def drawn_in_every_mode(module: Module) -> Iterator[ast.expr]:
    """`x.bernoulli_(1 - self.dropout)` in the forward of a module that never asks whether it is training."""
    if not module.calls_named(_DRAWS):
        return
    for cls in module.all(ast.ClassDef):
        if not module.is_module_class(cls) or _ON_PURPOSE.search(cls.name):
            continue
        if "train" in module.segment(cls):
            continue
        for method in methods_of(cls):
            if method.name in {"forward", "__call__"}:
                yield from _draws(module, cls, method)


def _draws(module: Module, cls: ast.ClassDef, method: ast.FunctionDef) -> Iterator[ast.expr]:
    """Draws that are compared with a rate, or made by one, that the module keeps: `self.dropout`, `self.p` of a `LayerDrop`."""
    for node in walk(method):
        match node:
            case ast.Call() if last_name(node) in {"bernoulli", "bernoulli_"}:
                place: ast.AST = node
            case ast.Compare(left, _, [right]) if _is_draw(left) or _is_draw(right):
                place = node
            case _:
                continue
        text = module.segment(place)
        if "self." in text and (_DROPS.search(text) or _DROPS.search(cls.name)):
            if isinstance(place, ast.expr):
                yield place


def _is_draw(node: ast.expr) -> bool:
    """`torch.rand(1)`, `torch.rand(()).item()`, `random.random()`."""
    drawn = chained_on(node, {"item", "to", "cuda"})
    return isinstance(drawn, ast.Call) and last_name(drawn) in _DRAWS
