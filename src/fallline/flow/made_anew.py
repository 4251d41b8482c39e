"""Layers that a forward pass makes for itself: new weights at every call, which no optimizer holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.recording import under_no_grad
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["made_anew"]

# Layers that begin with random weights. A norm begins as the identity, and is often made for one call on purpose.
_RANDOM = re.compile(
    r"^torch\.nn\.(Linear|Bilinear|Conv(Transpose)?[123]d|Embedding(Bag)?|(LSTM|GRU|RNN)(Cell)?|MultiheadAttention"
    r"|Transformer((En|De)coder(Layer)?)?)$"
)


def made_anew(module: Module) -> Iterator[ast.Call]:
    """`nn.Linear(8, 8)(x)` in a `forward`, or a name for the layer that is called there and kept nowhere."""
    for made in module.calls_resolved(_RANDOM):
        forward = module.function(made)
        cls = module.parent(forward) if forward is not None else None
        if not isinstance(forward, ast.FunctionDef) or forward.name != "forward":
            continue
        if not isinstance(cls, ast.ClassDef) or not module.is_module_class(cls):
            continue
        if _is_only_called(module, forward, made) and not under_no_grad(module, made):
            yield made


def _is_only_called(module: Module, forward: ast.FunctionDef, made: ast.Call) -> bool:
    """Whether the layer is called here and goes nowhere else: nobody can keep it, or fill its weights."""
    layer: ast.AST = made
    while isinstance(up := module.parent(layer), ast.Attribute) and up.attr in _MOVES:
        layer = module.parent(up) or up  # `.to(x.device)`: the same layer
    match module.parent(layer):
        case ast.Call(func=called) if called is layer:
            return True
        case ast.Assign([ast.Name(name)]):
            uses = [n for n in below(forward, ast.Name) if n.id == name]
            read = [module.parent(n) for n in uses if isinstance(n.ctx, ast.Load)]
            calls = [isinstance(p, ast.Call) and p.func in uses for p in read]
            return bool(calls) and all(calls)
    return False


_MOVES = frozenset({"to", "cuda", "type", "float", "half", "double"})
