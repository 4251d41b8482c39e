"""Which network's graph a value still has: followed back through names, arguments, returns, and items that were filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fallline.flow.calls import last_name, of_self, returned
from fallline.flow.losses import differentiated
from fallline.flow.makers import called_function
from fallline.flow.modules import is_module, looks_like_model
from fallline.flow.values import values_of
from fallline.syntax import Module

__all__ = ["graph_of", "returned_by"]

_SAYS_NETWORK = re.compile(
    r"net|model|critic|actor|policy|agent|(^|_)(q|qf|v|vf)\d?(_|$)|value|encoder", re.IGNORECASE
)
_CUTS = frozenset("detach item numpy tolist argmax max_indices long int bool".split())
# Of a tensor these take only the shape, or the order: what they give has no history.
_SHAPED = frozenset(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty new_tensor "
    "size numel argmin argsort isnan isinf isfinite eq ne gt ge lt le sign one_hot bernoulli multinomial".split()
)
_PICKS = frozenset({"max", "min", "topk", "sort"})
_FILLED = frozenset({"zeros", "empty", "zeros_like", "empty_like", "ones", "full"})
_ENOUGH = 10

Wanted = Callable[[Module, ast.Call], bool]


def graph_of(
    module: Module, node: ast.expr, depth: int = 0, wanted: Wanted | None = None
) -> ast.Call | None:
    """The call of a network (or one that is `wanted`) whose graph this value has; None where there is none or it was cut."""
    origin = values_of(module).origin(node)
    if depth > _ENOUGH or not differentiated(module, origin):
        return None
    ask = wanted or _is_network

    def first(*parts: ast.expr, home: Module = module) -> ast.Call | None:
        found = (graph_of(home, p, depth + 1, wanted) for p in parts)
        return next((f for f in found if f is not None), None)

    match origin:
        case ast.arg():
            return _of_argument(module, origin, depth, wanted)
        case ast.Name() if (part := values_of(module).unpacked(origin)) is not None:
            given = _part_of(module, *part)
            if given is not None:
                return first(given[1], home=given[0])
            return first(part[0]) if part[1] == 0 else None  # of `values, indices = x.max(1)`
        case ast.BinOp(left, _, right):
            return first(left, right)
        case ast.Subscript(ast.Call() as picked, ast.Constant(1)) if last_name(picked) in _PICKS:
            return None  # `logits.max(1)[1]`: indices
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            return first(inner)
        case ast.Attribute(inner, "values"):
            return first(inner)
        case ast.Call() if last_name(origin) in _CUTS:
            return None
        case ast.Call() if ask(module, origin):
            return origin
        case ast.Call() if (result := returned_by(module, origin)) is not None:
            return first(result[1], home=result[0])
        case ast.Call() if last_name(origin) in _FILLED and isinstance(node, ast.Name):
            return first(*_put_into(module, node))
        case ast.Call() if last_name(origin) in _SHAPED:
            return None
        case ast.Call(ast.Attribute(inner)) if module.resolve(origin.func) is None:
            return first(inner)
        case ast.Call(args=args) if (module.resolve(origin.func) or "").startswith("torch."):
            return first(*args)
    return None


def returned_by(module: Module, call: ast.Call) -> tuple[Module, ast.expr] | None:
    """What a function or method of the project returns, where it has one `return`; not what a network's forward does."""
    found = called_function(module, call)
    if found is None or found[1].name == "forward" or not differentiated(module, call):
        return None
    values = returned(*found)
    return (
        (found[0], values[0]) if len(values) == 1 and differentiated(found[0], values[0]) else None
    )


def _of_argument(
    module: Module, argument: ast.arg, depth: int, wanted: Wanted | None
) -> ast.Call | None:
    """What every call in this file hands over, where each has such a graph. Looked at once: functions that call each other lead back here in many ways."""
    known = module.notes(f"graph handed over, of {wanted.__qualname__ if wanted else 'a network'}")
    if argument not in known:
        known[argument] = None  # while it is followed: a circle adds no graph
        found: ast.Call | None = None
        for value in values_of(module).passed(argument):
            found = graph_of(module, value, depth + 1, wanted)
            if found is None:
                break
        known[argument] = found
    graph: ast.Call | None = known[argument]
    return graph


def _part_of(module: Module, call: ast.Call, place: int) -> tuple[Module, ast.expr] | None:
    """`targets, advantages = trace(values)`: what is there in the `return` of `trace`."""
    match returned_by(module, call):
        case home, ast.Tuple(parts) if len(parts) > place:
            return home, parts[place]
    return None


def _put_into(module: Module, name: ast.Name) -> Iterator[ast.expr]:
    """`returns[t] = running`, of a tensor that was made to be filled."""
    for statement in module.all(ast.Assign):
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(filled))], value) if filled == name.id:
                if module.scope(statement) is module.scope(name):
                    yield value


def _is_network(module: Module, call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            by_name = _SAYS_NETWORK.search(name) is not None and not _is_own_function(
                module, call.func
            )
            return is_module(module, call.func) or looks_like_model(call.func) or by_name
    return False


def _is_own_function(module: Module, func: ast.expr) -> bool:
    """A function or method of this file, also as an attribute (`self.act = self.act_greedily`): it may well compute without a graph."""
    own = {name.rpartition(".")[2] for name in module.functions}
    cls, kept = module.class_(func), of_self(func)
    values = module.attribute_values(cls, kept) if cls is not None and kept is not None else []
    return last_name(func) in own or any(of_self(value) in own for value in values)
