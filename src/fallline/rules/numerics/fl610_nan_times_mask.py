"""FL610: what may be NaN or infinite is masked by multiplication, and 0 times NaN is NaN."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in, receiver
from fallline.flow.hints import GUARD
from fallline.flow.masks import infinity_in, names_infinity
from fallline.flow.reached import seen_to_train
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["NanTimesMask"]

_MASKED = re.compile(r"(^|_)masked_(mean|sum|average|avg|loss|reduce)", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_CAN_BE_ZERO = re.compile(
    r"mask|prob|target|label|one_?hot|valid|(^|_)(p|q|pi)(_|$)", re.IGNORECASE
)
_MENDS = frozenset(
    {"nan_to_num", "nan_to_num_", "masked_fill", "masked_fill_", "where", "nansum", "nanmean"}
)


class NanTimesMask(Rule):
    code = "FL610"
    name = "nan-times-mask"
    severity = Severity.WARNING
    what = "A value that can be NaN or infinite is multiplied by a mask or by a probability of 0 to leave it out."
    why = (
        "0 × NaN and 0 × ∞ are NaN, so one bad value outside the mask makes the whole sum NaN. Logits that were filled with `-inf` are the usual "
        "source: their log-probability is `-inf`, their probability is 0, and the entropy `p * log p` is NaN."
    )
    instead = (
        "Choose instead of multiplying:\n\n"
        "```python\nloss = torch.where(mask.bool(), loss, 0.0).sum() / mask.sum()\n```\n\n"
        "Its gradient is NaN too if the value is NaN where it is not chosen, so keep the value itself finite: fill with a large negative number such as "
        "`-1e4` instead of `-inf`."
    )
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.where.html",)
    tokens = (b"inf", b"masked_", b"log(", b"log1p(", b"sqrt(", b"isnan(", b"isfinite(")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        infinite = names_infinity(module)
        partial = bool(module.calls_named(_PARTIAL))
        for node, left, right in _products(module):
            for side, other in ((left, right), (right, left)):
                filled = infinity_in(module, side) if infinite else None
                if filled is None or not _leaves_out(module, other):
                    continue
                if _mended(module, node):
                    break
                yield self.finding(
                    module.location(node),
                    f"`{module.segment(side)[:60]}` holds -inf where it was filled (line {getattr(filled, 'lineno', '?')}), and multiplying it by 0 gives NaN, not 0. "
                    "Use torch.where or masked_fill on the product, or fill with a large finite number",
                )
                break
            else:
                bad: ast.expr | None = (
                    _outside(module, left, right) or _outside(module, right, left)
                    if partial
                    else None
                )
                bad = bad or _known_nan(module, left, right) or _known_nan(module, right, left)
                helps = bad is None and _is_masked_helper(module, node, left, right)
                if (bad is None and not helps) or _mended(module, node):
                    continue
                if bad is not None:
                    yield self.finding(
                        module.location(node),
                        f"`{module.segment(bad)[:60]}` is infinite or NaN where this mask is 0, and 0 × NaN is NaN, not 0. "
                        "Choose the input first: `torch.where(mask, x, 1.0)`, then compute and mask",
                        severity=Severity.WARNING
                        if seen_to_train(module, node, bad)
                        else Severity.INFO,
                    )
                else:
                    yield self.finding(
                        module.location(node),
                        "A NaN or an infinity outside the mask makes this sum NaN, because 0 × NaN is NaN. Choose with torch.where(mask, values, 0.0)",
                        severity=Severity.INFO,
                    )

    wrong = (
        """\
import torch

logits = torch.nn.Linear(8, 5)(torch.randn(16, 8))
allowed = torch.rand(16, 5) > 0.3
logits = logits.masked_fill(~allowed, float("-inf"))
log_probs = torch.log_softmax(logits, dim=-1)
entropy = -(log_probs.exp() * log_probs).sum(-1)  # FL610
entropy.mean().backward()
""",
        """\
import torch
import torch.nn.functional as F


def policy_loss(scores, valid, targets):
    scores.masked_fill_(valid == 0, -1 * float("inf"))
    log_probs = F.log_softmax(scores, dim=1)
    return -(log_probs * targets).sum()  # FL610
""",
        """\
import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis=None):
    return (values * mask).sum(axis=axis) / (mask.sum(axis=axis) + 1e-8)  # FL610
""",
    )
    right = (
        """\
import torch

logits = torch.nn.Linear(8, 5)(torch.randn(16, 8))
allowed = torch.rand(16, 5) > 0.3
filled = logits.masked_fill(~allowed, -1e4)
log_probs = torch.log_softmax(filled, dim=-1)
entropy = -(log_probs.exp() * log_probs).sum(-1)
weights = torch.softmax(logits.masked_fill(~allowed, float("-inf")), dim=-1) * torch.rand(16, 5)
other = torch.log_softmax(logits.masked_fill(~allowed, float("-inf")), dim=-1)
masked = torch.where(allowed, other * torch.rand(16, 5), 0.0)
(entropy.mean() + weights.sum()).backward()
""",
        """\
import torch


def masked_mean(values, mask, axis=None):
    kept = torch.where(mask.bool(), values, 0.0)
    return (kept * mask).sum(axis=axis) / mask.sum(axis=axis).clamp_min(1)
""",
    )


def _products(module: Module) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    for node in module.all(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            yield node, node.left, node.right
    for call in module.method_calls("mul", "mul_"):
        match call.func, call.args:
            case ast.Attribute(left), [right] if module.resolve(call.func) is None:
                yield call, left, right


def _outside(module: Module, mask: ast.expr, value: ast.expr) -> ast.Call | None:
    """A logarithm or a root in what is multiplied by a test of the very value that it is taken of: `(x > 0) * x.log()`."""
    tested = _tested(module, mask)
    for call in below(value, ast.Call) if tested else ():
        of = receiver(module, call) if last_name(call) in _PARTIAL else None
        if of is not None and not GUARD.search(module.segment(of)):
            if {n for n in names_in(of) if n not in module.imports} & tested:
                return call
    return None


_ASKS = frozenset({"isnan", "isfinite", "isinf"})


def _known_nan(module: Module, mask: ast.expr, value: ast.expr) -> ast.expr | None:
    """`y` of `loss(x, y) * ~torch.isnan(y)`: what the mask says is NaN went into the product."""
    asked = _asked_for_nan(module, mask)
    for call in below(value, ast.Call) if asked else ():
        for given in (
            *call.args,
            *([call.func.value] if isinstance(call.func, ast.Attribute) else []),
        ):
            if (
                isinstance(given, ast.Name)
                and given.id in asked
                and last_name(call) not in _MENDS | _ASKS
            ):
                return given
    return None


def _asked_for_nan(module: Module, mask: ast.expr) -> set[str]:
    """The names that a mask asks about, where none of them is mended in this function."""
    made = values_of(module).origin(mask)
    calls = (
        [c for c in below(made, ast.Call) if last_name(c) in _ASKS]
        if isinstance(made, ast.expr)
        else []
    )
    names = {n for c in calls for n in names_in(c) if n not in module.imports}
    if not names:
        return names
    scope = module.scope(mask)
    written = {
        n.value.id
        for n in module.all(ast.Subscript)
        if isinstance(n.ctx, ast.Store)
        and isinstance(n.value, ast.Name)
        and module.scope(n) is scope
    }
    return {
        n
        for n in names - written
        if not any(
            last_name(c) in _MENDS and n in names_in(c)
            for c in module.all(ast.Call)
            if module.scope(c) is scope
        )
    }


_PARTIAL = frozenset({"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "acos", "asin"})


def _tested(module: Module, mask: ast.expr, depth: int = 0) -> set[str]:
    """The names whose size a mask asks for, through `.float()`, `1 - mask` and names."""
    match values_of(module).origin(mask):
        case ast.Compare(left, [ast.Lt() | ast.Gt() | ast.LtE() | ast.GtE()], [bound]):
            return names_in(left) if module.number(bound) == 0 else set()
        case ast.BinOp(left, ast.Sub(), right) if module.number(left) == 1 and depth < 4:
            return _tested(module, right, depth + 1)
        case ast.Call(ast.Attribute(inner, "float" | "to" | "type" | "type_as" | "double")) if (
            depth < 4
        ):
            return _tested(module, inner, depth + 1)
    return set()


def _leaves_out(module: Module, node: ast.expr) -> bool:
    """A mask, a probability or a target: something that can be 0."""
    match values_of(module).origin(node):
        case ast.Compare() | ast.UnaryOp(ast.Invert()):
            return True
        case ast.Call() as call if last_name(call) in {"exp", "softmax", "one_hot"}:
            return True
    written = names_in(node) | {n.attr for n in below(node, ast.Attribute)}
    return any(_CAN_BE_ZERO.search(word) for word in written)


def _mended(module: Module, node: ast.expr) -> bool:
    """A choice or a replacement around the product, or one of what it was assigned to."""
    for up in module.parents(node):
        match up:
            case ast.Call() if last_name(up) in _MENDS:
                return True
            case ast.Assign([ast.Name(name)]):
                uses = values_of(module).uses(name, module.scope(node))
                calls = (c for use in uses for c in module.parents(use) if isinstance(c, ast.Call))
                return any(last_name(c) in _MENDS | {"isfinite", "isnan"} for c in calls)
            case ast.stmt():
                break
    return False


def _is_masked_helper(module: Module, node: ast.expr, left: ast.expr, right: ast.expr) -> bool:
    """`values * mask` of the arguments of a function called masked_mean or so."""
    function = module.function(node)
    name = getattr(function, "name", "")
    if function is None or not _MASKED.search(name):
        return False
    match left, right:
        case (ast.Name(first), ast.Name(second)):
            pass
        case _:
            return False
    arguments = {a.arg for a in below(function, ast.arg)}
    bound = [b for n in (first, second) for b in module.bindings(n, function)]
    given = {first, second} <= arguments and all(isinstance(b, ast.arg) for b in bound)
    return given and (_MASK.search(first) is None) != (_MASK.search(second) is None)
