"""Along which dimension a weighted sum runs: `weights @ values`, `torch.einsum("bij,bjd->bid", weights, values)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name, operand, receiver
from fallline.flow.values import values_of
from fallline.syntax import Module

__all__ = ["fewest_dimensions", "is_product", "summed_by_place", "weighted_sums"]

_ATTENTION = re.compile(r"att(n|ent|ention)|alpha|beta|score|energy|affinit|weights?$", re.I)
# A soft assignment is normalised over what is chosen, and summed over what chooses.
_ASSIGNS = re.compile(
    r"assign|cluster|slot|vlad|rout|dispatch|expert|moe|gat(e|ing)|code|proto|mask|region|class|pool|respons",
    re.I,
)
_PRODUCTS = frozenset({"matmul", "bmm"})


def weighted_sums(module: Module) -> Iterator[tuple[ast.Call, int | None, int]]:
    """(softmax, how many dimensions it has, which of them is summed) of attention weights; -1 is the last of an unknown number."""
    for weights, dims, summed in _sums(module):
        softmax = _softmax(module, weights)
        if softmax is not None and (
            _is_attention(module, weights, softmax) or _looks_up(module, weights)
        ):
            yield softmax, dims, summed


def summed_by_place(module: Module) -> Iterator[tuple[ast.Call, int]]:
    """The softmax and the dimension of `(weights.unsqueeze(-1) * values).sum(1)`: counted from the front, the dimensions of both are the same."""
    for call in module.method_calls("sum"):
        dim = module.number(operand(module, call, "dim"))
        match receiver(module, call):
            case ast.BinOp(left, ast.Mult(), right) if dim is not None and dim >= 0:
                for side in (left, right):
                    weights = _spread(module, side)
                    softmax = _softmax(module, weights) if weights is not None else None
                    if weights is not None and softmax is not None:
                        if _is_attention(module, weights, softmax):
                            yield softmax, int(dim)


def _spread(module: Module, node: ast.expr) -> ast.expr | None:
    """`weights` of `weights.unsqueeze(-1)` and `weights[..., None]`, one dimension more at the end."""
    match node:
        case ast.Call(ast.Attribute(inner, "unsqueeze"), [place]) if module.number(place) == -1:
            return inner
        case ast.Subscript(inner, ast.Tuple([ast.Constant(dots), ast.Constant(None)])) if (
            dots is ...
        ):
            return inner
        case ast.Subscript(inner, ast.Tuple([*before, ast.Constant(None)])) if all(
            isinstance(b, ast.Slice) for b in before
        ):
            return inner
    return None


def fewest_dimensions(module: Module, node: ast.expr, depth: int = 10) -> int:
    """At least so many dimensions a value has, by the views, transpositions and products that made it; 0 if nothing says it."""
    found = values_of(module).origin(node)
    if not depth or not isinstance(found, ast.expr):
        return 0
    match found:
        case ast.BinOp(left, _, right):
            sides = (left, right)
            return max(fewest_dimensions(module, side, depth - 1) for side in sides)
        case ast.Call(ast.Attribute(attr="view" | "reshape" | "permute"), sizes) if len(sizes) > 1:
            return 0 if any(isinstance(s, ast.Starred) for s in sizes) else len(sizes)
        case ast.Call(ast.Attribute(inner, "transpose" | "swapaxes"), [one, other]):
            named = (module.number(place) for place in (one, other))
            least = max((int(n) + 1 for n in named if n is not None and n >= 0), default=0)
            return max(least, fewest_dimensions(module, inner, depth - 1))
        case ast.Call(ast.Attribute(_, name), [inner, *_]) if name in _KEEPS_DIMENSIONS | {
            "matmul"
        } and module.resolve(found.func):
            return fewest_dimensions(module, inner, depth - 1)
        case ast.Call(ast.Attribute(inner, name)) if name in _KEEPS_DIMENSIONS:
            return fewest_dimensions(module, inner, depth - 1)
    return 0


def is_product(module: Module, node: ast.expr, depth: int = 10) -> bool:
    """Scores, as a product of queries and keys gives them; perhaps scaled, masked or put through a softmax since."""
    found = values_of(module).origin(node)
    match found:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.BinOp(left, _, right) if depth:
            return any(is_product(module, side, depth - 1) for side in (left, right))
        case ast.Call(ast.Attribute(inner, name), given) if name in _KEEPS_DIMENSIONS and depth:
            return any(is_product(module, part, depth - 1) for part in (inner, *given[:1]))
        case ast.Call():
            return last_name(found) in _PRODUCTS | {"einsum", "baddbmm"}
    return False


_KEEPS_DIMENSIONS = frozenset(
    "masked_fill masked_fill_ contiguous softmax log_softmax dropout float to type clone detach".split()
)


def _sums(module: Module) -> Iterator[tuple[ast.expr, int | None, int]]:
    """The weights of a weighted sum, how many dimensions they have, and which of them is summed."""
    for product in module.all(ast.BinOp):
        if isinstance(product.op, ast.MatMult):
            yield product.left, None, -1
    for call in module.calls_named(_PRODUCTS | {"einsum"}):
        name = last_name(call)
        match call:
            case ast.Call(func, [left, _]) if name in _PRODUCTS and module.resolve(func):
                yield (left, 3, 2) if name == "bmm" else (left, None, -1)
            case ast.Call(ast.Attribute(left), [_]) if name in _PRODUCTS:
                yield (left, 3, 2) if name == "bmm" else (left, None, -1)
            case ast.Call() if name == "einsum":
                yield from _of_einsum(module, call)


def _of_einsum(module: Module, call: ast.Call) -> Iterator[tuple[ast.expr, int | None, int]]:
    """Operands of which one letter alone is summed."""
    texts = [a for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    given = [a for a in call.args if a not in texts]
    if len(texts) != 1 or "->" not in str(texts[0].value) or "." in str(texts[0].value):
        return
    before, _, after = str(texts[0].value).partition("->")
    kept = set(_letters(after))
    for part, factor in zip(before.split(","), given, strict=False):
        letters = _letters(part)
        summed = [i for i, letter in enumerate(letters) if letter not in kept]
        if len(summed) == 1 and len(given) == 2:
            yield factor, len(letters), summed[0]


def _letters(part: str) -> list[str]:
    """`b s h` (einops) or `bsh`."""
    words = part.split()
    return words if len(words) > 1 else list(words[0]) if words else []


def _softmax(module: Module, node: ast.expr, depth: int = 4) -> ast.Call | None:
    """The softmax that a value is, also after a dropout; not where it was transposed or divided since."""
    found = values_of(module).origin(node)
    match found:
        case ast.Call() if last_name(found) in {"softmax", "Softmax", "gumbel_softmax"}:
            return found
        case ast.Call(args=[inner, *_]) if "drop" in last_name(found).lower() and depth:
            return _softmax(module, inner, depth - 1)
        case ast.Call(func=ast.Attribute()) as call:
            made = values_of(module).constructed(call.func)
            return call if made is not None and last_name(made) == "Softmax" else None
    return None


def _is_attention(module: Module, weights: ast.expr, softmax: ast.Call) -> bool:
    """What is written around it calls it attention, and not an assignment."""
    function, cls = module.function(weights), module.class_(weights)
    names = [function.name if function is not None else "", cls.name if cls is not None else ""]
    written = module.segment(weights) if isinstance(weights, ast.Name | ast.Attribute) else ""
    said = " ".join([*names, written])
    return _ATTENTION.search(said) is not None and not _ASSIGNS.search(
        f"{said} {module.segment(softmax)}"
    )


def _looks_up(module: Module, weights: ast.expr) -> bool:
    """`einsum("b n h w, n d -> b d h w", one_hot, self.codebook.weight)`: soft choices of the rows of a table."""
    match module.parent(weights):
        case ast.Call(args=[*_, ast.Attribute(attr="weight") as table]) as call:
            texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
            rows = str(texts[0]).partition("->")[0].rpartition(",")[2] if texts else ""
            return table is not weights and len(_letters(rows)) == 2
    return False
