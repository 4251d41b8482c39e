"""What a module that is handed around is made of: whether a block holds dropout, or BatchNorm."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fallline.flow.calls import of_self
from fallline.flow.collected import iterated
from fallline.flow.modules import module_class
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of

__all__ = ["makes"]

_DEEPEST = 4
Wanted = Callable[[str], bool]


def makes(module: Module, block: ast.expr, wanted: Wanted, depth: int = _DEEPEST) -> bool:
    """Whether a block is known to call something that is `wanted` by its full name, such as `torch.nn.Dropout`."""
    return any(_in(home, node, wanted, depth) for home, node in _meant(module, block, depth))


def _in(module: Module, code: ast.AST, wanted: Wanted, depth: int) -> bool:
    """Such a call in this piece of code, in a class that it makes an object of, or in a function that it calls."""
    for call in below(code, ast.Call):
        if wanted(module.resolve(call.func) or ""):
            return True
        if not depth:
            continue
        found = module_class(module, call.func)
        if found is not None and _in(found[0], found[1], wanted, depth - 1):
            return True
        built = module.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if built is not None and built is not code and _in(module, built, wanted, depth - 1):
            return True
    return False


def _meant(module: Module, block: ast.expr, depth: int) -> Iterator[tuple[Module, ast.AST]]:
    """The code behind a block: what an attribute holds, a loop runs over, a name is bound to, callers hand over."""
    yield module, block
    name, cls = of_self(block), module.class_(block)
    if name is not None and cls is not None:
        yield from ((module, value) for value in module.attribute_values(cls, name))
        yield from ((module, d) for d in methods_of(cls) if d.name == name)
    if not isinstance(block, ast.Name) or not depth:
        return
    if block.id in module.functions:
        yield module, module.functions[block.id]
    for bound in module.bindings(block.id, module.scope(block)):
        sources: list[ast.expr] = []
        match bound, module.parent(bound):
            case ast.arg(), _:
                sources = values_of(module).passed(bound)
            case _, ast.Assign(value=source):
                sources = [source]
            case _:
                over = iterated(module, bound)
                sources = [over] if over is not None else []
        for source in sources:
            yield from _meant(module, source, depth - 1)
