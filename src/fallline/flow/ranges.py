"""Which values an expression is known to be able to take.

A `Range` is not a bound but a promise: the expression can reach both ends and what lies between, with finite inputs in
float32, underflow included (`softmax` reaches exactly 0). Where nothing is known the answer is None, and a rule that asks
"can this reach zero?" stays silent. A guard that the analysis does not understand therefore never costs a false alarm.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache

from fallline.flow.algebra import Range, constant, joined, larger
from fallline.flow.calls import last_name, names_in, of_self, operand, receiver, same, squared_base
from fallline.flow.hints import (
    BOOLEAN,
    GUARD,
    MADE_UP,
    MODEL,
    NEVER_EMPTY,
    OPERATIONS,
    REDUCED,
    SUM_STAYS_AWAY,
    WEIGHTED,
    is_chosen,
    is_logits,
    is_mask,
    named,
)
from fallline.flow.makers import SHAPE_OPS, made_by, output_of, own_similarity
from fallline.flow.values import shares_values, values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name

__all__ = ["range_of"]

_INF = math.inf
_DEEPEST = 24
_DIVERGENCE = re.compile(r"(^|[_.])(kl|js)|KL|JS|[Dd]ivergence|[Ee]ntropy")
_SPECTROGRAM = re.compile(r"torchaudio\.transforms\.(Mel)?Spectrogram")
_OPERATORS: dict[str, ast.operator] = {
    **dict.fromkeys(("add",), ast.Add()),
    **dict.fromkeys(("sub", "subtract"), ast.Sub()),
    **dict.fromkeys(("mul", "multiply"), ast.Mult()),
    **dict.fromkeys(("div", "divide", "true_divide"), ast.Div()),
}


def range_of(module: Module, node: ast.expr | None) -> Range | None:
    """The values this expression is known to be able to take; None where nothing is known."""
    return _ranges_of(module).of(node)


class _Ranges:
    """The ranges of one file's expressions, each found once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.values = values_of(module)
        self._known: dict[int, Range | None] = {}
        self._depth = 0

    def of(self, node: ast.expr | None) -> Range | None:
        if node is None or self._depth > _DEEPEST:
            return None
        if id(node) not in self._known:
            self._known[id(node)] = None  # a name defined by itself is not known
            self._depth += 1
            self._known[id(node)] = self._look(node)
            self._depth -= 1
        return self._known[id(node)]

    def _look(self, node: ast.expr) -> Range | None:
        match node:
            case ast.Constant(bool()):
                return None
            case ast.Constant(int() | float() as value):
                return constant(float(value)) if abs(value) < 1e300 else None
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.UnaryOp(ast.USub(), inner):
                known = self.of(inner)
                return known.negated() if known is not None else None
            case ast.UnaryOp(ast.Invert(), inner):
                known = self.of(inner)
                return known if known is not None and "mask" in known.source else None
            case ast.Compare(left, [ast.Eq(), *_], [right, *_]) if self._holds_itself(left, right):
                return None
            case ast.Compare():
                return self._mask(node)
            case ast.Subscript(value, index):
                # x[x > 0]: what is left is what the mask lets through
                return None if self._is_mask(index) else self.of(value)
            case ast.BinOp():
                return self._binary(node)
            case ast.Call():
                return self._call(node)
        return None

    # -- names -------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> Range | None:
        found = self.values.definition(node)
        if isinstance(found, ast.arg):
            known = joined([self.of(p) for p in self.values.passed(found)])
            if known is None or known.source in MADE_UP:
                return named(found.arg) or self._distribution(found) or known
            # `focal_loss(logits)` says more than `focal_loss(cls_outputs)`
            return named(found.arg) if known.guessed and is_logits(found.arg) else known
        known = self.of(found)
        if known is not None:
            return self._filled(node) if known.source in {"zeros", "zeros_like"} else known
        if found is None and (chosen := self._in_one_branch(node)) is not None:
            return chosen
        if found is None and self.values.unpacked(node) is not None:
            made = made_by(self.module, node)
            if made is not None and made.op in OPERATIONS:
                return Range(*OPERATIONS[made.op], made.op)
        if isinstance(found, ast.BinOp | ast.Compare) or self._of_probabilities(found):
            # computed from something that is not known: a name such as exp_logits says little
            return None
        if isinstance(found, ast.Call) and node.id in names_in(found):
            return None  # `outputs = clean(outputs)`: something was done about it
        # loop variables, results that cannot be followed: the name is all there is
        lines = [
            self.module.segment(self.module.statement(b)) if isinstance(b, ast.Name) else ""
            for b in self.module.bindings(node.id, self.module.scope(node))
        ]
        by_name = named(node.id) if not any(GUARD.search(text) for text in lines) else None
        if by_name is not None and by_name.source.startswith("the mask"):
            return None if any(NEVER_EMPTY.search(text) for text in lines) else by_name
        return by_name

    def _filled(self, node: ast.Name) -> Range:
        """`positives = torch.zeros(n, n)` with ones where `positives[a, b] = 1` says so: a row may have none."""
        for target in self.module.all(ast.Subscript):
            match target, self.module.parent(target):
                case ast.Subscript(ast.Name(name), _, ast.Store()), ast.Assign(value=value) if (
                    name == node.id and self.module.number(value) == 1
                ):
                    return Range(0.0, 1.0, f"the mask `{name}`")
        return Range(0.0, 0.0, "zeros")

    def _in_one_branch(self, node: ast.Name) -> Range | None:
        """What an `if` before this sets it to is one of the values that it can have: `if weights is None: weights = power`."""
        found = [self.of(value) for _, value in self.values.in_one_branch(node)]
        return next((r for r in found if r is not None and not r.is_constant), None)

    def _of_probabilities(self, made: ast.AST | None) -> bool:
        """An operation on what a softmax or sigmoid gave: whatever it is called, it is not a logit."""
        given = made.args if isinstance(made, ast.Call) else []
        return any((k := self.of(a)) is not None and k.source in SUM_STAYS_AWAY for a in given)

    def _distribution(self, argument: ast.arg) -> Range | None:
        """`p` and `q` of a divergence or an entropy are probabilities."""
        function = self.module.function(argument)
        if argument.arg not in {"p", "q", "p1", "p2", "px", "qx"} or function is None:
            return None
        if not _DIVERGENCE.search(self.module.qualname(function)):
            return None
        return Range(0.0, 1.0, f"the probabilities `{argument.arg}`")

    def _attribute(self, node: ast.Attribute) -> Range | None:
        match node:
            case ast.Attribute(ast.Call(), "eps" | "tiny"):
                return constant(1e-7)  # torch.finfo(dtype).eps
            case ast.Attribute(value, "T" | "mT" | "data"):
                return self.of(value)
            case ast.Attribute(ast.Name("self")):
                number = self.module.number(self.values.attribute(node))
                if number:  # an attribute set to 0 is given its value later
                    return constant(number)
        by_name = named(node.attr)
        # `outputs.logits` is what its name says; `self.mask` or `batch.target` may be anything
        sure = by_name is not None and (is_logits(node.attr) or by_name.is_constant)
        return by_name if sure else None

    # -- masks -------------------------------------------------------------------------------------------------

    def _holds_itself(self, left: ast.expr, right: ast.expr) -> bool:
        """Compared with something that holds it too (`ids == cat([ids, queue])`): it is found there at least once."""
        return shares_values(self.module, left, right)

    def _mask(self, node: ast.expr) -> Range | None:
        """Zeros and ones; an all-zero mask of padding or attention is not made by anyone."""
        text = " ".join(self.module.segment(node).split())
        if NEVER_EMPTY.search(text):
            return None
        return Range(0.0, 1.0, f"the mask `{text if len(text) <= 40 else text[:37] + '...'}`")

    def _is_mask(self, index: ast.expr) -> bool:
        match self.values.origin(index):
            case ast.Tuple(elts):
                return any(self._is_mask(e) for e in elts)
            case ast.Compare() | ast.BoolOp() | ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return True
            case ast.Call() as call if last_name(call) in BOOLEAN | {"nonzero", "where"}:
                return True
        return isinstance(index, ast.Name) and is_mask(index.id)

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp) -> Range | None:
        match node.op:
            case ast.Pow():
                return self._power(node.left, node.right)
            case ast.MatMult():
                return self._dot(node.left, node.right)
        left, right = self.of(node.left), self.of(node.right)
        match node.op:
            case ast.BitAnd() | ast.BitOr():
                return next(
                    (r for r in (left, right) if r is not None and "mask" in r.source), None
                )
            case ast.Sub():
                return self._difference(node, left, right)
            case ast.Mult() if same(node.left, node.right):
                return self._square(node.left)
            case ast.Mult() if _are_masks(node):
                return self._mask(
                    node
                )  # each leaves something out, and together they may leave nothing
            case ast.Mult() if left is None or right is None:
                known = left or right
                # zero stays zero whatever it is weighted by
                return known if known is not None and known.only_zero else None
        if left is None or right is None:
            return None
        match node.op:
            case ast.Add():
                return self._sum(node, left, right)
            case ast.Mult():
                return left.times(right)
            case ast.Div():
                return left.over(right)
        return None

    def _sum(self, node: ast.BinOp, left: Range, right: Range) -> Range | None:
        if left.source == right.source == "square":
            return None if self._softened(node) else left.plus(right)
        varied = not left.is_constant and not right.is_constant
        if varied and shares_values(self.module, node.left, node.right):
            return None  # where one is zero the other may not be
        return left.plus(right)

    def _difference(self, node: ast.BinOp, left: Range | None, right: Range | None) -> Range | None:
        match self.values.origin(node.right):
            case ast.Call() as call if last_name(call) in {"max", "amax", "logsumexp"}:
                of = receiver(self.module, call)
                if of is not None and same(of, node.left):
                    return Range(-_INF, 0.0, "x - x.max()")  # the stable softmax by hand
        if left is not None and left.is_constant:
            return left.minus(right, right.source) if right is not None else None
        if left is not None and right is not None and right.is_constant:
            return left.minus(right, left.source)
        if left is None or right is None or shares_values(self.module, node.left, node.right):
            # two values that are not known may be equal; nothing else is known of their difference
            squares = left is not None and left.source == "square"
            return Range(0.0, 0.0, "square" if squares else "difference")
        told = left.source.startswith("the ") or right.source.startswith("the ")
        return left.minus(right, "the difference of two predictions" if told else "difference")

    def _softened(self, node: ast.BinOp) -> bool:
        """`(a - b) ** 2 + c ** 2`: what is not a difference is added to keep the sum above zero (Charbonnier, pseudo-Huber)."""
        bases = [
            squared_base(self.module, self.values.origin(side)) for side in (node.left, node.right)
        ]
        return len({self._is_difference(base) for base in bases if base is not None}) == 2

    def _is_difference(self, base: ast.expr) -> bool:
        match self.values.origin(base):
            case ast.BinOp(op=ast.Sub()):
                return True
        return False

    def _square(self, base: ast.expr | None) -> Range | None:
        if base is None:
            return None
        inner = self.of(base)
        if inner is not None:
            return inner.squared()
        told = {n for k in below(base, ast.keyword) for n in names_in(k.value)}  # dim=dim
        names = names_in(base) - {"torch", "F", "self"} - told
        names |= {n.attr for n in below(base, ast.Attribute)}
        return None if is_chosen(names) else Range(0.0, 0.0, "square")

    def _power(self, base: ast.expr | None, exponent: ast.expr | None) -> Range | None:
        number = self.module.number(exponent)
        if number is None or base is None:
            return None
        if number % 2 == 0 and number > 0:
            return self._square(base)
        inner = self.of(base)
        return inner.power(number) if inner is not None else None

    def _dot(self, left: ast.expr | None, right: ast.expr | None) -> Range | None:
        """`a @ b.T`: cosines where both were normalised, anything where logits or layers are multiplied."""
        a, b = self.of(left), self.of(right)
        if a is not None and b is not None and a.source == b.source == "normalize":
            return Range(-1.0, 1.0, "cosine")
        if a is not None and b is not None and a.source == b.source == "norm":
            return a  # the lengths of all pairs
        return None

    # -- calls -------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Range | None:
        name, dotted = last_name(node), self.module.resolve(node.func)
        if name in {"tensor", "as_tensor", "full_like"} and node.args:
            number = self.module.number(node.args[-1])
            if number is not None:
                return constant(number)
        if (dotted is not None and not dotted.startswith("torch.")) or of_self(node.func):
            return self._model(node)
        if isinstance(node.func, ast.Name) and dotted is None:
            return self._builtin(node, name)
        of = receiver(self.module, node)
        match name:
            case "clamp" | "clamp_" | "clamp_min" | "clamp_min_" | "clamp_max" | "clip":
                return self._clamp(node, of)
            case "abs" | "absolute":
                inner = self.of(of)
                unsaid = inner is None or inner.source == "difference"
                return Range(0.0, 0.0, "abs") if inner is None or unsaid else inner.absolute()
            case "square":
                return self._square(of)
            case "pow":
                return self._power(of, operand(self.module, node, "exponent"))
            case "sqrt":
                inner = self.of(of)
                return inner.power(0.5) if inner is not None else None
            case "where":
                return self._where(node)
            case "maximum" | "max":
                other = operand(self.module, node, "other")
                if of is None or other is None or isinstance(other, ast.Constant):
                    return self.of(of)  # torch.max(x, dim)
                return larger(self.of(of), self.of(other))
            case "matmul" | "mm":
                return self._dot(of, operand(self.module, node, "other", "mat2", "tensor"))
            case "count_nonzero":
                inner = self.of(of)
                zero = inner is not None and inner.has_zero
                return Range(0.0, _INF, inner.source) if inner is not None and zero else None
            case "sum" | "nansum" | "cumsum":
                return self._summed(of)
            case "norm" | "vector_norm":
                return Range(0.0, _INF, "norm")
        if name in _OPERATORS:
            return self._arithmetic(node, of, _OPERATORS[name])
        if name in OPERATIONS and name not in WEIGHTED:
            return Range(*OPERATIONS[name], name)
        if name in BOOLEAN:
            other = operand(self.module, node, "other")
            if name == "eq" and of is not None and other is not None:
                return None if self._holds_itself(of, other) else self._mask(node)
            return self._mask(node)
        return self._kept(node, of, name) if name in SHAPE_OPS or name in REDUCED else None

    def _kept(self, node: ast.Call, of: ast.expr | None, name: str) -> Range | None:
        """What changes the shape, or picks from the values, keeps their range."""
        if name in {"gather", "masked_select"} and any(self._is_mask(a) for a in node.args):
            return None
        if name == "repeat_interleave" and self.module.number(operand(self.module, node)) is None:
            return None  # `n.repeat_interleave(n)`: a count of 0 is repeated 0 times
        inner = self.of(of)
        if name == "diagonal" and inner is not None and inner.source == "softmax":
            made = made_by(self.module, of) if of is not None else None
            logits = made.of if made is not None else None
            if made is not None and logits is not None and own_similarity(made.module, logits):
                return Range(1e-6, 1.0, "softmax")
        return inner

    def _builtin(self, node: ast.Call, name: str) -> Range | None:
        match name, node.args:
            case (("float" | "int"), [value, *_]):
                return self.of(value)
            case "max", [a, b]:
                return larger(self.of(a), self.of(b))
        return self._model(node)

    def _model(self, node: ast.Call) -> Range | None:
        """What a model returns: by its last layer where that is seen, else zero at least."""
        inner = self.values.result(node)
        if inner is not None:
            return self.of(inner)
        made = output_of(self.module, node.func, node)
        if made is not None:
            return Range(*OPERATIONS[made.op], made.op) if made.op in OPERATIONS else None
        built = self.values.constructed(node.func)
        if built is not None and _SPECTROGRAM.fullmatch(self.module.resolve(built.func) or ""):
            return Range(
                0.0, _INF, "spectrogram"
            )  # silence, and every band that no frequency falls into
        written = self.module.segment(node.func)
        return Range(0.0, 1.0, f"the output of `{written}`") if MODEL.search(written) else None

    def _clamp(self, node: ast.Call, of: ast.expr | None) -> Range | None:
        name = last_name(node)
        floor = operand(self.module, node, "min") if name != "clamp_max" else None
        ceiling = operand(self.module, node, "max", place=int(name != "clamp_max"))
        inner, low = self.of(of), self.of(floor)
        high = self.of(ceiling) if name != "clamp_min" else None
        if floor is not None and low is None and not isinstance(floor, ast.Constant):
            return None
        if low is not None and not low.is_constant:
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

    def _summed(self, of: ast.expr | None) -> Range | None:
        inner = self.of(of)
        if inner is None and self._selects(of):
            inner = Range(0.0, 1.0, f"the mask `{of.id}`")  # type: ignore[union-attr]
        if inner is None or inner.only_zero:
            return inner
        if inner.source in SUM_STAYS_AWAY or inner.source.startswith("the p"):
            return None  # probabilities sum to 1, or to more than 0 in any batch that training sees
        return inner.summed()

    def _selects(self, of: ast.expr | None) -> bool:
        """`pos` of `boxes[pos]` whose entries are counted with `pos.sum()`: numbers of rows would not be added up."""
        if not isinstance(of, ast.Name) or NEVER_EMPTY.search(of.id):
            return False
        scope = self.module.scope(of)
        return any(
            is_name(index, of.id) and self.module.scope(index) is scope
            for index in (s.slice for s in self.module.all(ast.Subscript))
        )

    def _where(self, node: ast.Call) -> Range | None:
        """Only what is sure: a branch picked by a test on itself is guarded."""
        if len(node.args) != 3 or self.module.resolve(node.func) is None:
            return None
        test, yes, no = node.args
        if names_in(test) & names_in(yes, no):
            return None
        return joined([self.of(yes), self.of(no)])

    def _arithmetic(
        self, node: ast.Call, of: ast.expr | None, operator: ast.operator
    ) -> Range | None:
        """`x.add(eps)`, `torch.div(a, b)` as their operators."""
        other = operand(self.module, node, "other")
        if of is None or other is None or any(k.arg == "alpha" for k in node.keywords):
            return None
        return self._binary(ast.copy_location(ast.BinOp(of, operator, other), node))


@lru_cache(maxsize=8)
def _ranges_of(module: Module) -> _Ranges:
    return _Ranges(module)


def _are_masks(product: ast.BinOp) -> bool:
    """`mask * logits_mask`."""
    match product:
        case ast.BinOp(ast.Name(left), _, ast.Name(right)):
            return is_mask(left) and is_mask(right)
    return False
