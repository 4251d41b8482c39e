"""Arithmetic with tensors: how a loss reduces, what it was divided by, and which forward passes are in it."""

from __future__ import annotations

import ast
import re

from fallline.api.call import Call
from fallline.api.paper import Paper, count_of
from fallline.api.values import NONE, Const, Divisor, Sequence, Tensor, Unknown, Value, replace
from fallline.syntax.nodes import below

__all__ = [
    "combined",
    "compares_samples",
    "divided",
    "filled_up",
    "merged",
    "of_arguments",
    "pieces",
    "reduce",
]

# Targets that someone fills up in this file. A word such as `lengths` or `pad_token` says nothing about the targets.
_PADDING = re.compile(
    r"\bpad_sequence\(|\]\s*=\s*-100\b|\[\s*-100\s*\]\s*\*|masked_fill_?\([^)]*-100\)|full(_like)?\([^)]*-100\b"
    r"|padding_value\s*=\s*-100\b|\[\w*IGNORE_INDEX\]\s*\*|=\s*\w*IGNORE_INDEX\b|DataCollatorFor(Seq2Seq|LanguageModeling)"
)


_RANKS = re.compile(
    r"(?i)(world_?size|dp_?size|num_(processes|gpus|ranks|replicas)|n_?gpus?)(\(\))?$|mesh\.size\("
)

_MANY = re.compile(r"(?i)accum|micro|num_passes|n_passes|per_rank|chunks|num_batches|n_batches")


def combined(paper: Paper, a: Value, b: Value, op: ast.operator, node: ast.AST) -> Value:
    """Two values under an arithmetic operator, at least one of them a tensor."""
    match a, op, b:
        case Tensor(), ast.Div(), Tensor():
            return _ratio(paper, a, b, node)
        case Tensor(), ast.Add() | ast.Sub(), Tensor():
            return merged(a, b)
        case Tensor(), _, Tensor():
            return replace(merged(a, b), masked=a.masked or b.masked or _is_mask(node))
        case Tensor(), ast.Div(), _:
            return divided(paper, a, b, node)
        case (Tensor() as tensor, ast.Mult(), by) | (by, ast.Mult(), Tensor() as tensor):
            return _weighted(paper, tensor, by, node)
        case (Tensor() as tensor, _, _) | (_, _, Tensor() as tensor):
            return replace(tensor)
    raise AssertionError("neither is a tensor")


def _ratio(paper: Paper, a: Tensor, b: Tensor, node: ast.AST) -> Tensor:
    """A tensor divided by one: a sum becomes a mean."""
    if _times_a_count(paper, node):
        # `loss / (tokens * micro_batches)`
        return replace(merged(a, b), divided=True, divided_at=paper.place(node), graph=a.graph)
    if a.reduction == "sum":
        if b.depth < a.depth:
            # a total of the whole window, made outside the loop over its micro-batches
            return replace(a, divided=True, divided_at=paper.place(node))
        if b.per_sample:
            # the mean of each sample: what is averaged over the batch has as many parts in every micro-batch
            return replace(merged(a, b), reduction=None, graph=a.graph)
        ragged = _counts(paper, node) and (
            "ignore_index" not in paper.text(node) or filled_up(paper)
        )
        return replace(merged(a, b), reduction="mean", ragged=ragged, graph=a.graph)
    return merged(a, b)


def _counts(paper: Paper, node: ast.AST) -> bool:
    """Divided by how many there are, and not by another sum of numbers: Dice and IoU are ratios, with no mask in them."""
    match node:
        case ast.BinOp(above, ast.Div(), below):
            named = paper.text(above) + paper.text(below)
            return not re.search(r"(?i)smooth|union|cardinal|intersect|dice|iou", named)
    return True


def _times_a_count(paper: Paper, node: ast.AST) -> bool:
    """What it is divided by is a product, and one factor of it is called like a number of micro-batches."""
    match node:
        case ast.BinOp(right=ast.BinOp(op=ast.Mult()) as below):
            return _MANY.search(paper.text(below)) is not None
    return False


def _is_mask(node: ast.AST) -> bool:
    return any("mask" in n.id.lower() for n in below(node, ast.Name))


def divided(paper: Paper, tensor: Tensor, by: Value, node: ast.AST) -> Tensor:
    """A tensor divided by a number."""
    if isinstance(by, Const) and by.value in (1, 1.0):
        return replace(tensor)
    if isinstance(by, Unknown) and by.outputs:
        return replace(tensor)  # a mean over the outputs of one pass, not over micro-batches
    text = (
        paper.text(node.right)
        if isinstance(node, ast.BinOp)
        else paper.text(node.value)
        if isinstance(node, ast.AugAssign)
        else ""
    )
    if isinstance(by, Unknown) and by.hint and not text:
        text = by.hint
    if paper.around.inside_model and tensor.reduction is not None and not _MANY.search(text):
        # a model averages over what it knows, a batch or its channels: micro-batches are its caller's
        return replace(tensor, reduction="mean")
    number = by.number if isinstance(by, Const) else None
    return replace(
        tensor,
        divided=True,
        divisor=Divisor(number, " ".join(text.split())),
        divided_at=paper.place(node),
    )


def _weighted(paper: Paper, tensor: Tensor, by: Value, node: ast.AST) -> Tensor:
    match by:
        case Const(int() | float() as number) if 0 < abs(number) < 1:
            divisor = tensor.divisor._replace(number=1 / number)
            return replace(tensor, divided=True, divisor=divisor, divided_at=paper.place(node))
        case Const(int() | float()):
            return replace(tensor)
        case Unknown(hint=hint) if any(_RANKS.search(t) for t in (hint, *_factors(paper, node))):
            return replace(tensor)  # against the average over ranks: not a division
        case Unknown(hint=hint) if hint.startswith("1"):
            divisor = tensor.divisor._replace(text=hint)
            return replace(tensor, divided=True, divisor=divisor, divided_at=paper.place(node))
    return replace(tensor, divided=None if not tensor.divided else True)


def _factors(paper: Paper, node: ast.AST) -> list[str]:
    """What the two sides of a product are called."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    return [paper.text(side) for side in sides]


def merged(a: Tensor, b: Tensor) -> Tensor:
    """A tensor computed from two."""
    graph = True if a.graph or b.graph else (None if a.graph is None or b.graph is None else False)
    if a.divided is b.divided:
        split = a.divided
    elif not _carries(a):
        split = b.divided
    elif not _carries(b):
        split = a.divided
    else:
        split = False if a.divided is False or b.divided is False else None
    return Tensor(
        graph,
        a.sets | b.sets,
        a.forwards | b.forwards,
        a.kept | b.kept,
        split,
        a.divisor.merged(b.divisor),
        a.divided_at or b.divided_at,
        a.reduction or b.reduction,
        a.ragged or b.ragged,
        a.masked or b.masked,
        a.scaler or b.scaler,
        None,
        a.half if a.half == b.half else a.half or b.half,
        a.length or b.length,
        depth=max(a.depth, b.depth),
        in_batch=a.in_batch or b.in_batch,
        per_sample=a.per_sample or b.per_sample,
        presumed=a.presumed or b.presumed,
    )


def _carries(tensor: Tensor) -> bool:
    return bool(tensor.graph) or tensor.reduction is not None


def filled_up(paper: Paper) -> bool:
    """Whether a file on the way to here is seen to fill up targets with what is ignored."""
    return any(_PADDING.search(module.source.text) is not None for module in paper.modules())


def reduce(paper: Paper, tensor: Tensor, name: str, call: Call) -> Tensor:
    """A function of a tensor, as far as how the loss reduces and scales goes."""
    result = tensor
    for value in map(paper.settled, call.values):
        if isinstance(value, Tensor) and value is not tensor and value.grad_of is None:
            result = merged(result, value)
    if name in {"mean", "nanmean"}:
        return replace(
            result,
            reduction="mean",
            divided=False if result.divided is None else result.divided,
            per_sample=_over_some(call),
            presumed="",
        )
    if name == "sum":
        seen = result.reduction == "mean" and not result.presumed
        return replace(
            result,
            reduction="mean" if seen else "sum",
            presumed="",
            depth=len(paper.loops.kinds),
            per_sample=_over_some(call),
        )
    if name in {"div", "div_", "true_divide"}:
        other = call.arg(0 if isinstance(call.node.func, ast.Attribute) else 1, "other")
        if other is not None and not isinstance(paper.settled(other), Tensor):
            return divided(paper, result, paper.settled(other), call.node)
    if name in {"detach"}:
        return replace(
            result, graph=False, forwards=frozenset(), kept=frozenset(), sets=frozenset()
        )
    if not paper.around.recording:
        return replace(result, graph=False)
    return replace(result, raw=False)


def _over_some(call: Call) -> bool:
    """`x.sum(dim=1)`, `torch.sum(x, 1)`: not over everything."""
    return bool({"dim", "axis"} & call.kwargs.keys()) or any(
        not isinstance(a, Tensor) for a in call.args
    )


def pieces(paper: Paper, tensor: Tensor, call: Call) -> Value:
    given = call.arg(0, "chunks", "split_size_or_sections", "split_size", "sections")
    count = count_of(paper, paper.settled(given)) if given is not None else None
    number = count if count is not None and 1 <= count <= 8 else 2
    return Sequence(
        [replace(tensor) for _ in range(max(number, 2) if count != 1 else 1)], paper.loops.iteration
    )


def of_arguments(paper: Paper, call: Call) -> Tensor:
    """What a call computes from: its arguments, and what is in a tuple among them."""
    result = Tensor(False)
    given = [paper.settled(value) for value in call.values]
    held = [item for value in given if isinstance(value, Sequence) for item in value.items[:8]]
    for value in (*given, *map(paper.settled, held)):
        if isinstance(value, Tensor):
            result = merged(result, value)
        elif isinstance(value, Unknown):
            result = merged(result, Tensor(None))
    if not paper.around.recording:
        return replace(result, graph=False)
    return result


def compares_samples(paper: Paper, call: Call) -> bool:
    """The targets are 0, 1, 2, ...: every sample is told from the others of its batch (contrastive losses)."""
    target = paper.settled(call.arg(1, "target") or NONE)
    return isinstance(target, Tensor) and target.numbered
