"""Calls of language models that shift the labels they are given, and how tokens are cut and reshaped around them."""

from __future__ import annotations

import ast

from fallline.flow.calls import chained_on
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import written
from fallline.syntax.once import once

__all__ = ["causal_calls", "plain", "same", "slice_of"]

_CAUSAL = ("ForCausalLM", "LMHeadModel")
_RESHAPES = frozenset({"view", "reshape", "flatten", "contiguous", "float", "long", "clone", "to"})
_WRAPS = frozenset(
    {"get_peft_model", "from_pretrained", "from_config", "to", "cuda", "half", "train", "compile"}
)


@once
def causal_calls(module: Module) -> list[ast.Call]:
    """Calls of a model that was made as `...ForCausalLM` or `...LMHeadModel` in this file."""
    text = module.source.text
    if not any(name in text for name in (*_CAUSAL, "labels=")):
        return []
    calls = [c for c in module.all(ast.Call) if isinstance(c.func, ast.Name | ast.Attribute)]
    return [c for c in calls if is_causal(module, c.func) or _by_convention(module, c)]


def _by_convention(module: Module, call: ast.Call) -> bool:
    """`model(input_ids=ids, labels=labels)`, of a model that somebody hands over: only models of Transformers are called so."""
    named = {k.arg for k in call.keywords}
    if not {"input_ids", "labels"} <= named or "decoder_input_ids" in named:
        return False
    origin = values_of(module).origin(call.func)
    return isinstance(origin, ast.arg) or origin is call.func


def is_causal(module: Module, node: ast.expr, depth: int = 4) -> bool:
    """Whether this is a language model of Transformers, through adapters and moves to a device."""
    made = module.value(node)
    if not isinstance(made, ast.Call) or not depth:
        return False
    name = module.resolve(made.func) or module.segment(made.func)
    parts = name.split(".")
    if any(p.endswith(_CAUSAL) for p in parts):
        return True
    if parts[-1] not in _WRAPS:
        return False
    inner = made.args[0] if made.args else None
    if isinstance(made.func, ast.Attribute) and isinstance(made.func.value, ast.Call | ast.Name):
        inner = made.func.value if module.resolve(made.func) is None else inner
    return inner is not None and is_causal(module, inner, depth - 1)


def slice_of(module: Module, node: ast.expr) -> tuple[ast.expr, str] | None:
    """`ids` and `1:` of `ids[:, 1:]`, through names and changes of shape."""
    value = module.value(plain(module, node))
    if not isinstance(value, ast.Subscript):
        return None
    index = value.slice
    last = index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index
    return (value.value, written(last)) if isinstance(last, ast.Slice) else None


def plain(module: Module, node: ast.expr) -> ast.expr:
    """A tensor without the calls that only change its shape or type."""
    here = chained_on(node, _RESHAPES)
    if isinstance(here, ast.Name):
        value = module.value(here)
        if chained_on(value, _RESHAPES) is not value:
            return plain(module, value)
    return here


def same(module: Module, one: ast.expr, other: ast.expr) -> bool:
    """The same text, in the same function."""
    return module.segment(one) == module.segment(other) and module.scope(one) is module.scope(other)
