"""Which values an expression is known to be able to take.

A `Range` is not a bound but a promise: the expression can reach both ends and what lies between, with finite inputs in
float32, underflow included (`softmax` reaches exactly 0). Where nothing is known the answer is None, and a rule that asks
"can this reach zero?" stays silent. A guard that the analysis does not understand therefore never costs a false alarm.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable

from fallline.rules.numerics._algebra import Range, constant, joined, larger
from fallline.rules.numerics._evidence import (
    BOOLEAN,
    GUARD,
    MADE_UP,
    MODEL,
    NEVER_EMPTY,
    OPERATIONS,
    REDUCED,
    SUM_STAYS_AWAY,
    SUMMED,
    WEIGHTED,
    is_chosen,
    is_logits,
    is_mask,
    named,
)
from fallline.rules.numerics._layers import (
    SHAPE_OPS,
    last_name,
    made_by,
    output_of,
    receiver,
    self_similarity,
    squared_base,
)
from fallline.rules.numerics._values import same, shares_values, values_of
from fallline.syntax import Module

__all__ = ["range_of"]

_INF = math.inf
_DEEPEST = 24
_DIVERGENCE = re.compile(r"(^|[_.])(kl|js)|KL|JS|[Dd]ivergence|[Ee]ntropy")


def range_of(module: Module, node: ast.expr, depth: int = 0) -> Range | None:
    """The values this expression is known to be able to take; None where nothing is known."""
    if depth > _DEEPEST:
        return None
    known = values_of(module).ranges
    if id(node) not in known:
        known[id(node)] = None  # a name defined by itself is not known
        number = _number(module, node)
        handler = _BY_NODE.get(node.__class__)
        if number is not None:
            known[id(node)] = constant(number)
        elif handler is not None:
            known[id(node)] = handler(module, node, depth + 1)
    found: Range | None = known[id(node)]
    return found


def _number(module: Module, node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant):
        value = node.value
        plain = (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        )
        return float(value) if plain else None  # type: ignore[arg-type]
    if isinstance(node, ast.Call) and last_name(node) in {"tensor", "as_tensor", "full_like"}:
        return module.number(node.args[-1]) if node.args else None
    if isinstance(node, ast.Attribute) and node.attr in {"eps", "tiny"}:
        return 1e-7 if isinstance(node.value, ast.Call) else None  # torch.finfo(dtype).eps
    return None


def _of_name(module: Module, node: ast.Name, depth: int) -> Range | None:
    values = values_of(module)
    found = values.definition(node)
    if isinstance(found, ast.arg):
        known = joined([range_of(module, p, depth + 1) for p in values.passed(found)])
        if known is None or known.source in MADE_UP:
            return named(found.arg) or _distribution(module, found) or known
        return known
    known = range_of(module, found, depth) if found is not None else None
    if known is not None:
        return known
    if isinstance(found, ast.BinOp | ast.Compare) or _of_probabilities(module, found, depth):
        return (
            None  # computed from something that is not known: a name such as exp_logits says little
        )
    # loop variables, results that cannot be followed: the name is all there is
    lines = [_line(module, b) for b in module.bindings(node.id, module.scope(node))]
    by_name = named(node.id) if not any(GUARD.search(text) for text in lines) else None
    if by_name is not None and by_name.source.startswith("the mask"):
        return None if any(NEVER_EMPTY.search(text) for text in lines) else by_name
    return by_name


def _of_probabilities(module: Module, made: ast.AST | None, depth: int) -> bool:
    """An operation on what a softmax or sigmoid gave: whatever it is called, it is no logit."""
    return isinstance(made, ast.Call) and any(
        (known := range_of(module, a, depth + 1)) is not None and known.source in SUM_STAYS_AWAY
        for a in made.args
    )


def _distribution(module: Module, argument: ast.arg) -> Range | None:
    """`p` and `q` of a divergence or an entropy are probabilities."""
    function = module.function(argument)
    if (
        argument.arg in {"p", "q", "p1", "p2", "px", "qx"}
        and function is not None
        and _DIVERGENCE.search(module.qualname(function))
    ):
        return Range(0.0, 1.0, f"the probabilities `{argument.arg}`")
    return None


def _line(module: Module, binding: ast.AST) -> str:
    return module.segment(module.statement(binding)) if isinstance(binding, ast.Name) else ""


def _of_attribute(module: Module, node: ast.Attribute, depth: int) -> Range | None:
    if node.attr in {"T", "mT", "data"}:
        return range_of(module, node.value, depth)
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        value = values_of(module).attribute(node)
        number = module.number(value) if value is not None else None
        if number:  # an attribute set to 0 is given its value later
            return constant(number)
    by_name = named(node.attr)
    # `outputs.logits` is what its name says; `self.mask` or `batch.target` may be anything
    sure = by_name is not None and (is_logits(node.attr) or by_name.source == "constant")
    return by_name if sure else None


def _of_unary(module: Module, node: ast.UnaryOp, depth: int) -> Range | None:
    inner = range_of(module, node.operand, depth)
    if isinstance(node.op, ast.USub) and inner is not None:
        return inner.negated()
    if isinstance(node.op, ast.Invert) and inner is not None and "mask" in inner.source:
        return inner
    return None


def _of_compare(module: Module, node: ast.Compare, depth: int) -> Range | None:
    if isinstance(node.ops[0], ast.Eq) and _equals_itself(module, node.left, node.comparators[0]):
        return None
    return _mask(module, node)


def _equals_itself(module: Module, left: ast.expr, right: ast.expr) -> bool:
    """Compared with something that holds it too (`ids == cat([ids, queue])`): it is found there at least once."""
    return shares_values(module, left, right)


def _mask(module: Module, node: ast.expr) -> Range | None:
    """Zeros and ones; an all-zero mask of padding or attention is not made by anyone."""
    text = " ".join(module.segment(node).split())
    if NEVER_EMPTY.search(text):
        return None
    return Range(
        0.0, 1.0, f"the mask `{text}`" if len(text) <= 40 else f"the mask `{text[:37]}...`"
    )


def _of_subscript(module: Module, node: ast.Subscript, depth: int) -> Range | None:
    if _is_mask(module, node.slice):
        return None  # x[x > 0]: what is left is what the mask lets through
    return range_of(module, node.value, depth)


def _is_mask(module: Module, index: ast.expr) -> bool:
    found = values_of(module).follow(index)
    if isinstance(found, ast.Tuple):
        return any(_is_mask(module, e) for e in found.elts)
    if isinstance(found, ast.Compare | ast.BoolOp):
        return True
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.BitAnd | ast.BitOr):
        return True
    if isinstance(found, ast.Call) and (
        last_name(found) in BOOLEAN or last_name(found) in {"nonzero", "where"}
    ):
        return True
    return isinstance(index, ast.Name) and is_mask(index.id)


def _of_binary(module: Module, node: ast.BinOp, depth: int) -> Range | None:
    op = node.op
    if isinstance(op, ast.Pow):
        return _power(module, node.left, node.right, depth)
    if isinstance(op, ast.MatMult):
        return _product_of_vectors(module, node.left, node.right, depth)
    left, right = range_of(module, node.left, depth), range_of(module, node.right, depth)
    if isinstance(op, ast.BitAnd | ast.BitOr):
        return next((r for r in (left, right) if r is not None and "mask" in r.source), None)
    if isinstance(op, ast.Sub):
        return _difference(module, node, left, right)
    if isinstance(op, ast.Mult):
        if same(node.left, node.right):
            return _square(left, node.left)
        if left is None or right is None:
            known = left or right
            # zero stays zero whatever it is weighted by
            return known if known is not None and known.only_zero else None
    if left is None or right is None:
        return None
    if isinstance(op, ast.Add):
        varied = not left.is_constant and not right.is_constant
        if (
            varied
            and not left.source == right.source == "square"
            and shares_values(module, node.left, node.right)
        ):
            return None  # where one is zero the other may not be
        if left.source == right.source == "square" and _softened(module, node):
            return None
        return left.plus(right)
    if isinstance(op, ast.Mult):
        return left.times(right)
    return left.over(right) if isinstance(op, ast.Div) else None


def _difference(
    module: Module, node: ast.BinOp, left: Range | None, right: Range | None
) -> Range | None:
    subtracted = values_of(module).follow(node.right)
    if isinstance(subtracted, ast.Call) and last_name(subtracted) in {"max", "amax", "logsumexp"}:
        of = receiver(module, subtracted)
        if of is not None and same(of, node.left):
            return Range(-_INF, 0.0, "x - x.max()")  # the stable softmax by hand
    if left is not None and left.is_constant:
        return left.minus(right, right.source) if right is not None else None
    if left is not None and right is not None and right.is_constant:
        return left.minus(right, left.source)
    if left is None or right is None or shares_values(module, node.left, node.right):
        # two values that are not known may be equal; nothing else is known of their difference
        return Range(
            0.0, 0.0, "square" if left is not None and left.source == "square" else "difference"
        )
    told = left.source.startswith("the ") or right.source.startswith("the ")
    return left.minus(right, "the difference of two predictions" if told else "difference")


def _softened(module: Module, node: ast.BinOp) -> bool:
    """`(a - b) ** 2 + c ** 2`: what is no difference is added to keep the sum above zero (Charbonnier, pseudo-Huber)."""
    bases = [
        squared_base(module, values_of(module).follow(side)) for side in (node.left, node.right)
    ]
    return len({_is_difference(module, base) for base in bases if base is not None}) == 2


def _is_difference(module: Module, base: ast.expr) -> bool:
    made = values_of(module).follow(base)
    return isinstance(made, ast.BinOp) and isinstance(made.op, ast.Sub)


def _names(node: ast.AST) -> set[str]:
    """Names and attributes, those of modules left out."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - {"torch", "F", "self"}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _square(inner: Range | None, base: ast.expr) -> Range | None:
    if inner is None:
        return None if is_chosen(_names(base)) else Range(0.0, 0.0, "square")
    return inner.squared()


def _power(module: Module, base: ast.expr, exponent: ast.expr, depth: int) -> Range | None:
    number = module.number(exponent)
    inner = range_of(module, base, depth)
    if number is None:
        return None
    if number % 2 == 0 and number > 0:
        return _square(inner, base)
    return inner.power(number) if inner is not None else None


def _product_of_vectors(
    module: Module, left: ast.expr, right: ast.expr, depth: int
) -> Range | None:
    """`a @ b.T`: cosines where both were normalised, anything where logits or layers are multiplied."""
    a, b = range_of(module, left, depth), range_of(module, right, depth)
    if a is not None and b is not None and a.source == b.source == "normalize":
        return Range(-1.0, 1.0, "cosine")
    return None


# -- calls -----------------------------------------------------------------------------------------------------


def _of_call(module: Module, node: ast.Call, depth: int) -> Range | None:
    name = last_name(node)
    dotted = module.resolve(node.func)
    if dotted is not None and not dotted.startswith("torch."):
        return _of_model(module, node, depth)
    if isinstance(node.func, ast.Name) and dotted is None:
        return _builtin(module, node, name, depth)
    if (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ):
        return _of_model(module, node, depth)
    of = receiver(module, node)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(module, node, of, depth)
    if name in OPERATIONS and name not in WEIGHTED:
        return Range(*OPERATIONS[name], name)
    if name in BOOLEAN:
        other = module.argument(node, 0 if dotted is None else 1, "other")
        if name == "eq" and of is not None and other is not None:
            return None if _equals_itself(module, of, other) else _mask(module, node)
        return _mask(module, node)
    if of is None:
        return None
    if name in SHAPE_OPS or name in REDUCED:
        if name in {"gather", "masked_select"} and any(_is_mask(module, a) for a in node.args):
            return None
        inner = range_of(module, of, depth)
        if (
            name == "diagonal"
            and inner is not None
            and inner.source == "softmax"
            and _own_diagonal(module, of)
        ):
            return Range(1e-6, 1.0, "softmax")
        return inner
    return None


def _own_diagonal(module: Module, of: ast.expr) -> bool:
    made = made_by(module, of)
    logits = receiver(made.module, made.call) if made is not None else None
    return made is not None and logits is not None and self_similarity(made.module, logits)


def _builtin(module: Module, node: ast.Call, name: str, depth: int) -> Range | None:
    if name in {"float", "int"} and node.args:
        return range_of(module, node.args[0], depth)
    if name == "max" and len(node.args) == 2:
        return larger(range_of(module, node.args[0], depth), range_of(module, node.args[1], depth))
    return _of_model(module, node, depth)


def _of_model(module: Module, node: ast.Call, depth: int) -> Range | None:
    """What a model returns: by its last layer where that is seen, else zero at least."""
    made = output_of(module, node.func, node, depth)
    if made is not None:
        if made.op in OPERATIONS:
            return Range(*OPERATIONS[made.op], made.op)
        return None
    written = module.segment(node.func)
    return Range(0.0, 1.0, f"the output of `{written}`") if MODEL.search(written) else None


def _clamp(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    name = last_name(node)
    method = 0 if module.resolve(node.func) is None else 1
    floor = module.argument(node, method, "min") if name != "clamp_max" else None
    ceiling = module.argument(node, method + 1 if name != "clamp_max" else method, "max")
    inner = range_of(module, of, depth) if of is not None else None
    low = range_of(module, floor, depth) if floor is not None else None
    high = range_of(module, ceiling, depth) if ceiling is not None and name != "clamp_min" else None
    if floor is not None and low is None and not isinstance(floor, ast.Constant):
        return None
    if low is not None and low.source != "constant":
        return None  # a floor that is computed was meant to be one
    if inner is None:
        if low is None:
            return None
        # the clamp is there because its bound is reached
        top = high.low if high is not None else low.low
        return Range(low.low, max(low.low, top), "clamp")
    bottom = max(inner.low, low.low) if low is not None else inner.low
    top = min(inner.high, high.low) if high is not None else inner.high
    source = "clamp" if low is not None and low.low >= inner.low else inner.source
    return Range(bottom, max(bottom, top), source)


def _summed(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    inner = range_of(module, of, depth) if of is not None else None
    if inner is None or inner.only_zero:
        return inner
    if inner.source in SUM_STAYS_AWAY or inner.source.startswith("the p"):
        return None  # probabilities sum to 1, or to more than 0 in any batch that training sees
    return inner.summed()


def _counted(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    inner = range_of(module, of, depth) if of is not None else None
    return Range(0.0, _INF, inner.source) if inner is not None and inner.has_zero else None


def _absolute(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    inner = range_of(module, of, depth) if of is not None else None
    if inner is None or inner.source == "difference":
        return Range(0.0, 0.0, "abs")
    return inner.absolute()


def _squared(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    return _square(range_of(module, of, depth), of) if of is not None else None


def _powered(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    exponent = module.argument(node, 0 if module.resolve(node.func) is None else 1, "exponent")
    return _power(module, of, exponent, depth) if of is not None and exponent is not None else None


def _rooted(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    inner = range_of(module, of, depth) if of is not None else None
    return inner.power(0.5) if inner is not None else None


def _where(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    """Only what is sure: a branch picked by a test on itself is guarded."""
    if len(node.args) != 3 or module.resolve(node.func) is None:
        return None
    test, yes, no = node.args
    tested = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    if any(
        isinstance(n, ast.Name) and n.id in tested for side in (yes, no) for n in ast.walk(side)
    ):
        return None
    return joined([range_of(module, yes, depth), range_of(module, no, depth)])


def _arithmetic(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    """`x.add(eps)`, `torch.div(a, b)` as their operators."""
    other = module.argument(node, 0 if module.resolve(node.func) is None else 1, "other")
    if of is None or other is None or any(k.arg == "alpha" for k in node.keywords):
        return None
    written = ast.BinOp(of, _OPERATORS[last_name(node)], other)
    return _of_binary(module, ast.copy_location(written, node), depth)


def _maximum(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    other = module.argument(node, 0 if module.resolve(node.func) is None else 1, "other")
    if of is None:
        return None
    inner = range_of(module, of, depth)
    if other is None or isinstance(other, ast.Constant):
        return inner  # torch.max(x, dim)
    return larger(inner, range_of(module, other, depth))


def _matmul(module: Module, node: ast.Call, of: ast.expr | None, depth: int) -> Range | None:
    other = module.argument(
        node, 0 if module.resolve(node.func) is None else 1, "other", "mat2", "tensor"
    )
    return (
        _product_of_vectors(module, of, other, depth)
        if of is not None and other is not None
        else None
    )


_OPERATORS: dict[str, ast.operator] = {
    "add": ast.Add(),
    "sub": ast.Sub(),
    "subtract": ast.Sub(),
    "mul": ast.Mult(),
    "multiply": ast.Mult(),
    "div": ast.Div(),
    "divide": ast.Div(),
    "true_divide": ast.Div(),
}
_SPECIAL: dict[str, Callable[[Module, ast.Call, ast.expr | None, int], Range | None]] = {
    "clamp": _clamp,
    "clamp_": _clamp,
    "clamp_min": _clamp,
    "clamp_min_": _clamp,
    "clamp_max": _clamp,
    "clip": _clamp,
    "abs": _absolute,
    "absolute": _absolute,
    "square": _squared,
    "pow": _powered,
    "sqrt": _rooted,
    "where": _where,
    "maximum": _maximum,
    "max": _maximum,
    "matmul": _matmul,
    "mm": _matmul,
    "count_nonzero": _counted,
    **dict.fromkeys(SUMMED, _summed),
    **dict.fromkeys(_OPERATORS, _arithmetic),
}
_BY_NODE: dict[type, Callable[..., Range | None]] = {
    ast.Name: _of_name,
    ast.Attribute: _of_attribute,
    ast.UnaryOp: _of_unary,
    ast.Compare: _of_compare,
    ast.Subscript: _of_subscript,
    ast.BinOp: _of_binary,
    ast.Call: _of_call,
}
