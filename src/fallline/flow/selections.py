"""Means over what a mask selects: NaN where it selects nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name, operand, receiver
from fallline.flow.hints import BOOLEAN, NEVER_EMPTY, is_mask
from fallline.flow.losses import calls_of_what_is_built, guarded, in_loss
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["means_of_selected"]

# Losses that take the mean of what they are given, unless they are told otherwise.
_MEAN_LOSSES = re.compile(
    r"(smooth_l1|l1|mse|huber|cross_entropy|nll|binary_cross_entropy(_with_logits)?|kl_div|bce)(_loss)?"
)
_MEANS = re.compile(f"^(mean|{_MEAN_LOSSES.pattern})$")
_LOSS_LAYERS = re.compile(r"(SmoothL1|L1|MSE|Huber|CrossEntropy|NLL|BCE(WithLogits)?|KLDiv)Loss")
_LOGICAL = frozenset({"logical_and", "logical_or", "nonzero", "bool"}) | BOOLEAN
# Everyone is in one of these, or the loader has seen to it.
_ALWAYS_SOME = re.compile(
    r"triu|tril|eye|arange|finite|isnan|len|perm|idx|ind(ex|ices)|train_mask|val_mask|test_mask"
)


def means_of_selected(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    """`x[mask].mean()` and `F.l1_loss(a[mask], b[mask])` in a loss, and the mask, where nobody asks whether it selects anything."""
    calls = set(module.calls_named(_MEANS))
    if _makes_a_loss(module):  # what is called may be one of them
        calls |= {call for call, _ in calls_of_what_is_built(module)}
    for call in module.index.sorted([*calls]):
        selected = _averaged(module, call)
        mask = _mask_of(module, selected) if selected is not None else None
        if mask is None or guarded(module, mask) or _mentions_count(module, call):
            continue
        if in_loss(module, call):
            yield call, mask


def _averaged(module: Module, call: ast.Call) -> ast.expr | None:
    """What a call takes the mean of."""
    name = last_name(call)
    if name == "mean" and operand(module, call, "dim") is None:
        return receiver(module, call)
    if not call.args or any(
        k.arg in {"reduction", "reduce", "size_average"} for k in call.keywords
    ):
        return None
    if _MEAN_LOSSES.fullmatch(name) and (module.resolve(call.func) or "").startswith("torch."):
        return call.args[0]
    if not isinstance(call.func, ast.Name | ast.Attribute) or not _makes_a_loss(module):
        return None
    made = values_of(module).constructed(call.func)
    if made is not None and made is not call and _LOSS_LAYERS.fullmatch(last_name(made)):
        told = any(k.arg in {"reduction", "reduce", "size_average", None} for k in made.keywords)
        return None if told else call.args[0]
    return None


@once
def _makes_a_loss(module: Module) -> bool:
    """Whether the file names a loss layer at all: asked before every call is followed to what made it."""
    text = module.source.text
    return "Loss" in text and _LOSS_LAYERS.search(text) is not None


def _mask_of(module: Module, node: ast.expr) -> ast.expr | None:
    """`mask` of `x[mask]`, `x[mask].view(-1)` and of `torch.masked_select(x, mask)`."""
    origin = values_of(module).origin
    here: ast.AST = origin(node)
    for _ in range(4):
        match here:
            case ast.Subscript(_, index) if _is_test(module, index):
                return index
            case ast.Call(args=[*_, mask]) if last_name(here) == "masked_select":
                return mask if _is_test(module, mask, given=True) else None
            case ast.Call(ast.Attribute(inner)) if last_name(here) in {
                "view",
                "float",
                "reshape",
                "squeeze",
                "abs",
                "pow",
                "flatten",
            }:
                here = origin(inner)
            case ast.BinOp(left):
                here = origin(left)
            case _:
                return None
    return None


def _is_test(module: Module, index: ast.expr, given: bool = False) -> bool:
    """A mask that may select nothing: made by a comparison, or called like one; or `given` where only a mask can be."""
    if NEVER_EMPTY.search(module.segment(index)) or _ALWAYS_SOME.search(module.segment(index)):
        return False
    made = values_of(module).origin(index)
    text = module.segment(made) if isinstance(made, ast.expr) else ""
    if NEVER_EMPTY.search(text) or _ALWAYS_SOME.search(text):
        return False
    match made:
        case ast.Compare(
            ops=[ast.Gt() | ast.Lt() | ast.GtE() | ast.LtE() | ast.Eq() | ast.NotEq()]
        ):
            return True
        case ast.BinOp(op=ast.BitAnd()) | ast.UnaryOp(ast.Invert()):
            return True
        case ast.Call() if last_name(made) in _LOGICAL:
            return True
    return (
        isinstance(index, ast.Name) and isinstance(made, ast.arg) and (given or is_mask(index.id))
    )


def _mentions_count(module: Module, call: ast.Call) -> bool:
    """The NaN is taken care of afterwards: `if torch.isnan(loss)`, `nan_to_num`, a count that is asked for."""
    function = module.function(call)
    text = module.segment(function) if function is not None else ""
    return (
        re.search(
            r"isnan|isfinite|nan_to_num|nanmean|numel\(\)|\.any\(\)|num_pos|len\(\w*(mask|pos)",
            text,
        )
        is not None
    )
