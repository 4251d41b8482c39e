"""A project's own copy of DistributedSampler: it gives each rank its part, in an order that its epoch seeds."""

from __future__ import annotations

import ast

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, is_name, methods_of, walk

__all__ = ["is_distributed_sampler"]

_SEEDS = frozenset({"manual_seed", "seed", "default_rng", "RandomState", "Random"})
_MAY_SET = frozenset({"__init__", "set_epoch"})


def is_distributed_sampler(module: Module, cls: ast.ClassDef) -> bool:
    """`g.manual_seed(self.epoch)` in `__iter__` of a sampler that knows its rank, where only set_epoch moves the epoch on."""
    known: bool | None = module.notes("distributed sampler").get(cls)
    if known is None:
        known = module.notes("distributed sampler")[cls] = _is_one(module, cls)
    return known


def _is_one(module: Module, cls: ast.ClassDef) -> bool:
    bases = module.bases(cls)
    if not any(b.startswith("torch.utils.data.") and b.endswith("Sampler") for b in bases):
        return False
    taken, order = find_method(module, cls, "set_epoch"), find_method(module, cls, "__iter__")
    if taken is None or order is None or not _names(cls, "rank"):
        return False
    return _seeds_by_epoch(order[1]) and not _moves_on_by_itself(cls)


def _names(cls: ast.ClassDef, name: str) -> bool:
    return any(n.attr == name for n in below(cls, ast.Attribute))


def _seeds_by_epoch(order: ast.AST) -> bool:
    calls = [n for n in below(order, ast.Call) if last_name(n) in _SEEDS]
    return any(_is_epoch(n) for call in calls for a in call.args for n in walk(a))


def _moves_on_by_itself(cls: ast.ClassDef) -> bool:
    """`self.epoch += 1` at the end of a pass."""
    return any(
        _is_epoch(n) and isinstance(n.ctx, ast.Store)
        for method in methods_of(cls)
        if method.name not in _MAY_SET
        for n in below(method, ast.Attribute)
    )


def _is_epoch(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "epoch" and is_name(node.value, "self")
