"""Whether a value is seen to carry a gradient into a backward, and whether those who hand it over keep it away from a bad number.

A logarithm of 0 matters where a network's output goes through it into a loss that is walked back. Boxes, coordinates and metrics have
no gradient, and what nobody hands to a backward trains nothing: a finding there is a note.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Literal

from fallline.flow.callers import callers_of, passed_for
from fallline.flow.calls import last_name, of_self
from fallline.flow.gradients import takes_no_gradient
from fallline.flow.recording import under_no_grad
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below
from fallline.syntax.once import once

__all__ = ["bounded_by_callers", "computes_in_half", "seen_to_train"]

Place = tuple[Module, ast.AST]

_STEPS = 10  # from an expression over names, returns and calls to a backward
_PLACES = 60
_TAKES = frozenset({"backward", "manual_backward", "scale", "scale_loss"})
_ENDS = frozenset(
    "detach item numpy tolist argmax argmin argsort isnan isinf isfinite print len format str shape size dim backward_hook data".split()
)
_KEEPS = frozenset({"append", "extend", "update", "add"})
_GIVEN_BACK = frozenset({"training_step", "compute_loss", "closure"})
_OF_A_MODEL = re.compile(
    r"(?i)pred|logit|(^|_)out(put)?s?($|_)|score|prob|feat|embed|(^|_)emb($|_)|fake|recon|student|(^|_)(mu|mean|sigma|rate|y_?hat|yhat)($|_)"
)
_BOUNDS = frozenset(
    "clamp clamp_min clip clamp_ clamp_min_ softplus exp maximum log_softmax".split()
)
_HALF = re.compile(r"\bautocast\b|\.half\(\)|torch\.float16|torch\.bfloat16|fp16|GradScaler")


def seen_to_train(module: Module, node: ast.AST, of: ast.expr) -> bool:
    """What `node` computes of `of` is followed into a backward, `of` comes out of a network, and no caller bounds it."""
    return (
        _reaches_backward(module, node)
        and _from_a_network(module, of, 6)
        and not bounded_by_callers(module, of)
    )


@once
def computes_in_half(module: Module) -> bool:
    """Whether this file, or one beside it, computes in half precision: there a sigmoid is 0 from -17 on, in float32 from -104 on."""
    beside = module.project.beside(module, b"autocast") if module.project is not None else []
    return _HALF.search(module.source.text) is not None or bool(beside)


def bounded_by_callers(module: Module, of: ast.expr) -> bool:
    """It is an argument that somebody who calls this function has clamped, or to which they have added something."""
    return any(
        _is_bounded(home, value)
        for name in below(of, ast.Name)
        for home, value in passed_for(module, name)
    )


def _is_bounded(module: Module, value: ast.expr) -> bool:
    match values_of(module).origin(value):
        case ast.Call() as call if last_name(call) in _BOUNDS:
            return True
        case ast.BinOp(left, ast.Add(), right):
            numbers = (module.number(left), module.number(right))
            return any(n is not None and n > 0 for n in numbers) or "eps" in module.segment(value)
    return False


def _reaches_backward(module: Module, node: ast.AST) -> bool:
    if under_no_grad(module, node):
        return False
    seen: set[ast.AST] = set()
    ahead: list[Place] = [(module, node)]
    for _ in range(_STEPS):
        here, ahead = ahead[:_PLACES], []
        for home, place in here:
            if place in seen:
                continue
            seen.add(place)
            carried = _carried_to(home, place)
            if carried is True:
                return True
            if carried is None:
                continue
            if isinstance(carried, ast.Return):
                function = home.function(carried)
                if function is not None and function.name in _GIVEN_BACK:
                    return True
            ahead += _read_next(home, place, carried)
        if not ahead:
            return False
    return False


def _carried_to(module: Module, node: ast.AST) -> ast.stmt | Literal[True] | None:
    """The statement that takes a value on, True where that is a backward, None where the value ends."""
    child: ast.AST = node
    for up in module.parents(node):
        match up:
            case ast.Attribute(attr="backward"):
                return True
            case ast.Attribute(attr=name) if name in _ENDS:
                return None
            case ast.Call() if child is not up.func and last_name(up) in _TAKES:
                return True
            case ast.Call() if child is not up.func and last_name(up) in _ENDS:
                return None
            case ast.Compare() | ast.FormattedValue() | ast.JoinedStr():
                return None
            case ast.Subscript(slice=index) if index is child:
                return None
            case ast.stmt():
                return up
        child = up
    return None


def _read_next(module: Module, node: ast.AST, statement: ast.stmt) -> Iterator[Place]:
    """Where the value of a statement is read next: by its names, its attributes, its list, or by the callers of its function."""
    match statement:
        case ast.Return():
            yield from _callers(module, statement)
            return
        case ast.Assign(targets=assigned):
            targets: list[ast.expr] = assigned
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            targets = [target]
        case ast.Expr(ast.Call(ast.Attribute(kept, method))) if method in _KEEPS:
            targets = [kept]
        case _:
            return
    for each in targets:
        for part in each.elts if isinstance(each, ast.Tuple | ast.List) else [each]:
            yield from _reads(module, node, statement, part)


def _reads(module: Module, node: ast.AST, after: ast.stmt, target: ast.expr) -> Iterator[Place]:
    held = target
    while isinstance(held, ast.Subscript):
        held = held.value
    match held:
        case ast.Name(name):
            # in a loop it may be read above
            first = None if module.enclosing(after, ast.For, ast.While) else after
            uses = values_of(module).uses(name, module.scope(node), first)
            for use in uses:
                if use is not node and not _made_anew(module, use, after):
                    yield module, use
        case ast.Attribute(attr=attr) if of_self(held) is not None:
            cls = module.class_(held)
            for read in below(cls, ast.Attribute) if cls is not None else ():
                if read.attr == attr and isinstance(read.ctx, ast.Load) and read is not node:
                    yield module, read


def _made_anew(module: Module, use: ast.Name, after: ast.stmt) -> bool:
    """The name surely stands for something else by then."""
    made = values_of(module).definition(use)
    return isinstance(made, ast.expr) and module.statement(made) is not after


def _callers(module: Module, returned: ast.Return) -> Iterator[Place]:
    function = module.function(returned)
    if isinstance(function, ast.FunctionDef):
        yield from callers_of(module, function)


def _from_a_network(module: Module, node: ast.AST | None, depth: int) -> bool:
    """A call of a model or a layer, a parameter, or what is computed of one; an argument that is called like an output."""
    if node is None or depth < 0 or takes_no_gradient(module, node):
        return False

    def any_of(*parts: ast.AST) -> bool:
        return any(_from_a_network(module, p, depth - 1) for p in parts)

    match node:
        case ast.Name():
            origin = values_of(module).origin(node)
            if isinstance(origin, ast.arg):
                passed = list(passed_for(module, node))
                if passed:
                    return any(_from_a_network(h, v, depth - 1) for h, v in passed[:8])
                return _OF_A_MODEL.search(node.id) is not None
            if origin is node:
                return _OF_A_MODEL.search(node.id) is not None
            return any_of(origin)
        case ast.BinOp(left, _, right):
            return any_of(left, right)
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return any_of(inner)
        case ast.Tuple(elts) | ast.List(elts):
            return any_of(*elts)
        case ast.IfExp(_, first, second):
            return any_of(first, second)
        case ast.Attribute(attr="weight" | "bias"):
            return True
        case ast.Attribute():
            kept = values_of(module).attribute(node)
            return kept is not None and any_of(kept)
        case ast.Call():
            return _call_of_a_network(module, node, depth)
    return False


def _call_of_a_network(module: Module, call: ast.Call, depth: int) -> bool:
    if any(k.arg == "requires_grad" and module.constant(k.value) is True for k in call.keywords):
        return True
    name = last_name(call)
    if name in {"Parameter", "Embedding"} or name == "requires_grad_":
        return True
    dotted = module.resolve(call.func)
    given = [*call.args, *(k.value for k in call.keywords)]
    if dotted is not None and dotted.startswith("torch."):
        return any(_from_a_network(module, a, depth - 1) for a in given)
    match call.func:
        case ast.Attribute(value) if of_self(call.func) is None:
            # a method of a tensor, or `model.encode(x)`
            model = isinstance(value, ast.Name) and re.search(r"(?i)model|net|^(enc|dec|gen|disc|actor|critic|policy)", value.id)  # fmt: skip
            return bool(model) or _from_a_network(module, value, depth - 1)
        case ast.Attribute() | ast.Call():
            return True  # `self.body(x)`, `nn.Linear(4, 4)(x)`
        case ast.Name(called):
            function = module.functions.get(called)
            if function is not None or called in module.imports:
                return any(_from_a_network(module, a, depth - 1) for a in given)
            return True  # `model(x)`
    return False
