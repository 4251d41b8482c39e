"""A softmax however it is written, what is picked from it, and the stable way to write its logarithm."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name, of_self, receiver, same
from fallline.flow.makers import Made, made_by
from fallline.flow.values import values_of
from fallline.syntax import Module

__all__ = ["log_of", "logits_of", "peeled", "rebuilt", "softened", "softmax_behind", "weighed"]

_PICKS = frozenset(
    "gather index_select diagonal diag take_along_dim take masked_select select".split()
)
_KEEPS = frozenset(
    "view reshape squeeze unsqueeze float contiguous flatten clone to double".split()
)
_CLAMPS = frozenset({"clamp", "clamp_min", "clip", "add"})
_CLOSED = frozenset(
    f"torch.nn.{n}" for n in ("functional.nll_loss", "functional.kl_div", "NLLLoss", "KLDivLoss")
)
_PRODUCTS = frozenset({"mul", "multiply", "dot", "einsum"})


def softmax_behind(module: Module, node: ast.expr) -> Made | None:
    """The call of softmax whose result this is."""
    made = made_by(module, node)
    return made if made is not None and made.op == "softmax" else None


def logits_of(module: Module, node: ast.expr) -> ast.expr | None:
    """What the softmax is taken of, also where it is written out as exp / sum(exp)."""
    made = softmax_behind(module, node)
    if made is not None:
        return made.of or made.call
    origin = values_of(module).origin
    match origin(node):
        case ast.BinOp(left, ast.Div(), right):
            above, total = _exponent(module, _unpicked(module, left)[0]), origin(right)
        case _:
            return None
    if not isinstance(total, ast.Call) or last_name(total) != "sum":
        return None
    summed = receiver(module, total)
    below = _exponent(module, origin(summed)) if summed is not None else None
    if above is None or below is None:
        return None
    return below if same(_unpicked(module, above)[0], _unpicked(module, below)[0]) else None


def _exponent(module: Module, node: ast.AST) -> ast.expr | None:
    """`x` of `exp(x)`."""
    is_exp = isinstance(node, ast.Call) and last_name(node) == "exp"
    return receiver(module, node) if isinstance(node, ast.Call) and is_exp else None


def _unpicked(module: Module, node: ast.expr) -> tuple[ast.AST, bool]:
    """The whole of which some entries are taken: `logits` of `logits[range(n), y]`."""
    here, picked = values_of(module).origin(node), False
    while True:
        inner: ast.expr | None = None
        match here:
            case ast.Subscript(value):
                inner = value
            case ast.Call() if last_name(here) in _PICKS | _KEEPS:
                inner = receiver(module, here)
        if inner is None:
            return here, picked
        here, picked = values_of(module).origin(inner), True


def peeled(module: Module, node: ast.expr) -> tuple[ast.expr, bool]:
    """The probabilities inside what a log is taken of, and whether some of them were picked on the way."""
    picked = False
    for _ in range(10):
        found = values_of(module).origin(node)
        match found:
            case ast.Subscript(slice=index) if _is_test(module, index):
                return node, False  # p[p > 0] takes care of zeros itself
            case ast.BinOp(top, ast.Div(), _):
                inside = _exponent(module, _unpicked(module, top)[0])
                picks = [top] if inside is None else [top, inside]
                return node, picked or any(_unpicked(module, p)[1] for p in picks)
            case ast.expr():
                inner, taken = _one_layer(module, found)
            case _:
                return node, picked
        picked = picked or taken
        if inner is None:
            return node, picked
        node = inner
    return node, picked


def softened(module: Module, node: ast.expr) -> bool:
    """Whether a clamp or an added epsilon keeps what a log is taken of away from zero."""
    inner: ast.expr | None = node
    for _ in range(10):
        found = values_of(module).origin(inner) if inner is not None else None
        if not isinstance(found, ast.expr):
            return False
        match found:
            case ast.BinOp(left, ast.Add(), right):
                return _is_epsilon(module, left) or _is_epsilon(module, right)
            case ast.Call() if last_name(found) in _CLAMPS:
                return True
        inner, _ = _one_layer(module, found)
    return False


def _is_test(module: Module, index: ast.expr) -> bool:
    return isinstance(values_of(module).origin(index), ast.Compare)


def _one_layer(module: Module, found: ast.expr) -> tuple[ast.expr | None, bool]:
    """What is inside a pick, a change of shape, a clamp or an added epsilon; and whether it picks."""
    match found:
        case ast.Subscript(value):
            return value, True
        case ast.BinOp(inner, ast.Add(), epsilon) if _is_epsilon(module, epsilon):
            return inner, False
        case ast.BinOp(epsilon, ast.Add(), inner) if _is_epsilon(module, epsilon):
            return inner, False
        case ast.Call() if (name := last_name(found)) in _PICKS | _KEEPS | _CLAMPS:
            return receiver(module, found), name in _PICKS
        case ast.Call() if last_name(found) == "sum":
            match values_of(module).origin(receiver(module, found) or found):
                case ast.BinOp(left, ast.Mult(), right):
                    return (left if softmax_behind(module, left) else right), True
    return None, False


def _is_epsilon(module: Module, node: ast.expr) -> bool:
    number = module.number(node)
    return (number is not None and 0 < number < 0.1) or "eps" in module.segment(node).lower()


# -- what becomes of the log -----------------------------------------------------------------------------------


def weighed(module: Module, log: ast.Call, probabilities: ast.expr) -> bool:
    """Whether a log is later picked from, or multiplied by something other than the probabilities themselves."""
    return any(_picks(module, place, probabilities) for place in _places(module, log))


def _places(module: Module, log: ast.Call) -> Iterator[ast.expr]:
    """The expression itself and, where it is given a name, every use of that name."""
    yield log
    values = values_of(module)
    named = values.named(log)
    if named is not None:
        yield from values.uses(named[1].id, module.scope(log), named[0])


def _picks(module: Module, place: ast.expr, probabilities: ast.expr) -> bool:
    child: ast.AST = place
    by_others = False  # by something other than the probabilities, so far
    for up in module.parents(place):
        match up:
            case ast.UnaryOp():
                pass
            case ast.BinOp(op=ast.Add() | ast.Sub()) if by_others:
                pass
            case ast.Attribute(value) if value is child:
                pass
            case ast.Subscript(value):
                return value is child
            case ast.BinOp(left, ast.Mult(), right):
                other = right if left is child else left
                while isinstance(other, ast.UnaryOp):
                    other = other.operand
                if _is_same_softmax(module, other, probabilities):
                    return False
                if module.number(other) is not None:
                    return by_others
                by_others = True  # `p * (alpha * log p - q)` is an entropy still
            case ast.Call() if last_name(up) in _PRODUCTS:
                factors = [f for f in _factors(up) if f is not child]
                return not any(_is_same_softmax(module, f, probabilities) for f in factors)
            case ast.Call() if last_name(up) in _PICKS or _closes(module, up):
                return True
            case ast.Call(ast.Attribute() as func) if func is child and last_name(up) in _KEEPS:
                pass
            case _:
                return by_others
        child = up
    return by_others


def _factors(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]


def _is_same_softmax(module: Module, other: ast.expr, probabilities: ast.expr) -> bool:
    """`p * log(p)` is an entropy, not a cross-entropy."""
    if same(other, probabilities):
        return True
    mine, theirs = softmax_behind(module, probabilities), softmax_behind(module, other)
    return mine is not None and theirs is not None and mine.call is theirs.call


def _closes(module: Module, call: ast.Call) -> bool:
    """nll_loss and its kin, which pick or weigh inside."""
    if module.resolve(call.func) in _CLOSED or "nll" in last_name(call).lower():
        return True
    made = values_of(module).constructed(call.func)
    return made is not None and module.resolve(made.func) in _CLOSED


# -- the stable spelling ---------------------------------------------------------------------------------------


def log_of(module: Module, made: Made, place: ast.AST, negative: bool = False) -> str | None:
    """Text for the log of what `made` computes (of one minus it, if `negative`), written at `place`.

    None where it cannot be written there with certainty.
    """
    call = made.call
    if made.module is not module or not values_of(module).still_means(call, place):
        return None
    if made.op == "softmax" and not negative:
        return _log_softmax(module, call)
    of = _given(module, call) if made.op == "sigmoid" else None
    name = module.spelling("torch.nn.functional.logsigmoid")
    if of is None or name is None:
        return None
    text = module.segment(of)
    if negative:
        plain = isinstance(of, ast.Name | ast.Call | ast.Subscript | ast.Attribute)
        text = f"-{text}" if plain else f"-({text})"
    return f"{name}({text})"


def _given(module: Module, call: ast.Call) -> ast.expr | None:
    """`x` of `torch.sigmoid(x)`, `x.sigmoid()`, `nn.Sigmoid()(x)`."""
    if module.resolve(call.func) is None and isinstance(call.func, ast.Attribute) and not call.args:
        return call.func.value
    return call.args[0] if len(call.args) == 1 and not call.keywords else None


def _log_softmax(module: Module, call: ast.Call) -> str | None:
    callee = module.segment(call.func)
    arguments = module.segment(call)[len(callee) :]
    match call.func:
        case ast.Attribute(attr="softmax") if of_self(call.func) is None:
            return callee[: -len("softmax")] + "log_softmax" + arguments
        case ast.Name() if (module.resolve(call.func) or "").startswith("torch."):
            home = module.spelling("torch.nn.functional.log_softmax")
            name = home or module.spelling("torch.log_softmax")
            return None if name is None else name + arguments
    made = values_of(module).constructed(call.func)
    dim = module.argument(made, 0, "dim") if made is not None else None
    name = module.spelling("torch.log_softmax")
    if name is None or dim is None or module.number(dim) is None or len(call.args) != 1:
        return None
    return f"{name}({module.segment(call.args[0])}, dim={module.segment(dim)})"


def rebuilt(module: Module, of: ast.expr, probabilities: ast.expr, stable: str) -> str | None:
    """The text of `of` with the probabilities replaced by their log; None if anything else than picking and clamping lies between."""
    here, between = of, ""
    while here is not probabilities:
        match here:
            case ast.Subscript(inner):
                between = _after(module, here, inner) + between
            case ast.Call(ast.Attribute(inner, name) as func) if module.resolve(func) is None:
                if name in _PICKS | _KEEPS:
                    between = _after(module, here, inner) + between
                elif name not in _CLAMPS:
                    return None
            case ast.BinOp(left, ast.Add(), right):
                inner = left if _is_epsilon(module, right) else right
            case _:
                return None
        here = inner
    return stable + between


def _after(module: Module, outer: ast.expr, inner: ast.expr) -> str:
    return module.segment(outer)[len(module.segment(inner)) :]
