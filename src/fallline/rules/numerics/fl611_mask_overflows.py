"""FL611: a mask of -inf, or of the smallest number, that makes a row NaN."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, operand, receiver
from fallline.flow.losses import loss_calls
from fallline.flow.makers import made_by
from fallline.flow.masks import infinity_in, is_infinite, names_infinity
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["MaskOverflows"]

_MASK = re.compile(r"mask|pad|triu|tril|causal|valid", re.IGNORECASE)
_FILLS = ("masked_fill", "masked_fill_")


class MaskOverflows(Rule):
    code = "FL611"
    name = "mask-overflows"
    severity = Severity.WARNING
    what = "A mask of `-inf`, or of the smallest number of its type, is built or added so that softmax returns NaN."
    why = """\
Softmax over a row that is `-inf` everywhere is NaN, and its gradient reaches every weight.

- `mask * -inf` is NaN wherever the mask is 0, because 0 × ∞ is NaN.
- Two masks of `torch.finfo(dtype).min` that are added overflow to `-inf`: a row that both mask everywhere is NaN. A causal mask is never one of the two: it leaves each position itself.
- A mask over both rows and columns of the attention leaves rows of padding with nothing to attend to.
- `log_softmax` of `-inf` is `-inf`, and CTC's gradient there is NaN."""
    instead = (
        "Use masked_fill, with a number that can be added to:\n\n"
        "```python\nscores = scores.masked_fill(~keep, -1e4)  # or torch.finfo(scores.dtype).min / 2\n```\n\n"
        "`scaled_dot_product_attention` with a boolean mask needs no number at all."
    )
    tokens = (b"inf", b"finfo")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._times_infinity(module)
        yield from self._added_twice(module)
        yield from self._before_ctc(module)
        yield from self._outer(module)
        yield from self._beyond_half(module)

    def _times_infinity(self, module: Module) -> Iterator[Finding]:
        for node in module.all(ast.BinOp) if names_infinity(module) else ():
            if not isinstance(node.op, ast.Mult):
                continue
            for mask, number in ((node.left, node.right), (node.right, node.left)):
                if is_infinite(module, number) and _is_mask(module, mask):
                    yield self.finding(
                        module.location(node),
                        f"`{module.segment(mask)[:60]}` is 0 where nothing is masked, and 0 × inf is NaN, so everything that this mask is added to becomes NaN. "
                        "Use masked_fill",
                    )

    def _added_twice(self, module: Module) -> Iterator[Finding]:
        for node in module.all(ast.BinOp) if "finfo" in module.source.text else ():
            both = (node.left, node.right)
            if (
                isinstance(node.op, ast.Add)
                and all(_is_lowest(module, side) for side in both)
                and not any(_leaves_itself(module, side) for side in both)
            ):
                yield self.finding(
                    module.location(node),
                    "Both masks hold the smallest number of their type, and where both apply, their sum is -inf: a row that both mask everywhere becomes NaN. "
                    "Combine the boolean masks first, and fill once",
                    severity=Severity.INFO,
                )

    def _before_ctc(self, module: Module) -> Iterator[Finding]:
        seen: set[int] = set()
        for call, _ in loss_calls(module, "ctc_loss", "CTCLoss"):
            given = module.argument(call, 0, "log_probs")
            made = made_by(module, given) if given is not None else None
            if made is None or made.op != "log_softmax" or made.module is not module:
                continue
            of = made.call.args[0] if made.call.args else made.of
            filled = infinity_in(module, of)
            if filled is not None and id(filled) not in seen:
                seen.add(id(filled))
                yield self.finding(
                    module.location(filled),
                    "These log-probabilities are -inf after log_softmax, and the gradient of the CTC loss there is NaN. Fill with a large finite number such as -1e4",
                )

    def _outer(self, module: Module) -> Iterator[Finding]:
        for call in module.method_calls(*_FILLS):
            if not is_infinite(module, operand(module, call, "value", place=1)):
                continue
            mask = operand(module, call, "mask")
            if mask is not None and _is_outer(module, mask) and _softmaxed(module, call):
                yield self.finding(
                    module.location(call),
                    "This mask is the product of a padding mask with itself, so every row of a padding token is -inf everywhere and softmax makes it NaN. "
                    "Mask only the keys, or fill with a large finite number",
                )

    def _beyond_half(self, module: Module) -> Iterator[Finding]:
        """`scores.masked_fill(mask, -1e9)`: more than float16 has, and torch refuses it there."""
        for call in module.method_calls(*_FILLS):
            number = module.number(operand(module, call, "value", place=1))
            if number is not None and -1e38 < number < _LOWEST_HALF and _softmaxed(module, call):
                yield self.finding(
                    module.location(call),
                    f"{number:g} is below the smallest float16 number, -65504: with float16 scores (autocast) this raises an error. "
                    "Use `torch.finfo(scores.dtype).min`",
                    severity=Severity.INFO,
                )

    wrong = (
        """\
import torch

scores, keep = torch.randn(2, 4, 4), torch.ones(2, 1, 4)
scores = scores + (1.0 - keep) * float("-inf")  # FL611
print(torch.softmax(scores, dim=-1))
""",
        """\
import torch


def attention_mask(padding, other_documents, dtype):
    lowest = torch.finfo(dtype).min
    between = torch.zeros(other_documents.shape, dtype=dtype).masked_fill(other_documents, lowest)
    expanded = torch.zeros(padding.shape, dtype=dtype).masked_fill(padding, torch.finfo(dtype).min)
    return between + expanded  # FL611
""",
        """\
import torch
from torch import nn


class Align(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_softmax = nn.LogSoftmax(dim=-1)
        self.ctc_loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, scores, key_lens, query_lens, targets):
        keys = torch.arange(scores.size(-1))
        scores.masked_fill_(keys.view(1, 1, -1) > key_lens.view(1, -1, 1), -float("inf"))  # FL611
        scores = self.log_softmax(scores)
        return self.ctc_loss(scores, targets, input_lengths=query_lens, target_lengths=key_lens)
""",
        """\
import torch


def attend(scores, tokens, values):
    keep = tokens != 0
    both = keep.unsqueeze(1) & keep.unsqueeze(2)
    scores = scores.masked_fill(~both, float("-inf"))  # FL611
    return torch.softmax(scores, dim=-1) @ values
""",
    )
    right = (
        """\
import torch

scores, keep = torch.randn(2, 4, 4), torch.ones(2, 1, 4).bool()
causal = torch.triu(torch.ones(4, 4) * float("-inf"), diagonal=1)
scores = scores.masked_fill(~keep, float("-inf")) + causal
bias = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).bool().triu(1), torch.finfo(torch.float32).min)
print(torch.softmax(scores + bias, dim=-1), [float("inf")] * 3, 2 * float("inf"))
""",
        """\
import torch


def attention_mask(padding, size, dtype):
    lowest = torch.finfo(dtype).min
    causal = torch.full((size, size), lowest, dtype=dtype)
    causal = torch.triu(causal, 1)  # each position sees itself: no row is masked everywhere
    expanded = torch.zeros(padding.shape, dtype=dtype).masked_fill(padding, lowest)
    return causal[None, None, :, :] + expanded
""",
    )


_LOWEST_HALF = -65504.0


def _is_mask(module: Module, node: ast.expr) -> bool:
    """A tensor of zeros and ones: `1 - mask`, `mask.float()`, `torch.triu(...)`, a comparison; not `torch.ones(...)`."""
    match values_of(module).origin(node):
        case ast.BinOp(left, ast.Sub(), right) if module.number(left) == 1:
            return not isinstance(right, ast.Constant)
        case ast.UnaryOp(ast.Invert(), inner):
            return _is_mask(module, inner)
        case ast.Compare():
            return True
        case ast.Call(
            ast.Attribute(inner, "float" | "to" | "type" | "int" | "type_as" | "unsqueeze")
        ):
            return _is_mask(module, inner)
        case ast.Call() as call:
            return last_name(call) in {"triu", "tril"}
        case ast.Name(name) | ast.arg(name):
            return _MASK.search(name) is not None
    return False


def _is_lowest(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """Filled with `torch.finfo(dtype).min`."""
    if depth > 4:
        return False
    match values_of(module).origin(node):
        case ast.Call() as call if last_name(call) in {*_FILLS, "full", "where", "full_like"}:
            return any(
                _is_smallest(module, a) for a in [*call.args, *(k.value for k in call.keywords)]
            )
        case ast.Call() as call if last_name(call) in {
            "triu",
            "tril",
            "to",
            "expand",
            "unsqueeze",
            "view",
        }:
            of = receiver(module, call)
            return of is not None and _is_lowest(module, of, depth + 1)
        case ast.BinOp(left, ast.Mult(), right):
            return _is_smallest(module, left) or _is_smallest(module, right)
        case ast.Subscript(value):
            return _is_lowest(module, value, depth + 1)
    return False


def _leaves_itself(module: Module, node: ast.expr, depth: int = 0) -> bool:
    """A causal mask, `triu(..., 1)`: in each row one place is not masked, so no sum masks the whole row twice."""
    if depth > 4:
        return False
    match values_of(module).origin(node):
        case ast.Call() as call if last_name(call) in {"triu", "triu_"}:
            first = operand(module, call, "diagonal")
            return first is not None and (module.number(first) or 0) > 0
        case ast.Call() as call:
            of = receiver(module, call)
            return of is not None and _leaves_itself(module, of, depth + 1)
        case ast.Subscript(value):
            return _leaves_itself(module, value, depth + 1)
    return False


def _is_smallest(module: Module, node: ast.expr) -> bool:
    match values_of(module).origin(node):
        case ast.Attribute(ast.Call() as asked, "min"):
            return last_name(asked) == "finfo"
    return False


def _is_outer(module: Module, mask: ast.expr) -> bool:
    """`~(keep.unsqueeze(1) & keep.unsqueeze(2))`, also with `*` and `== 0`."""
    match values_of(module).origin(mask):
        case ast.UnaryOp(ast.Invert() | ast.Not(), inner):
            return _is_outer(module, inner)
        case ast.Compare(inner, [ast.Eq()], [zero]) if module.number(zero) == 0:
            return _is_outer(module, inner)
        case ast.BinOp(
            ast.Call(ast.Attribute(ast.Name(first), "unsqueeze"), [d]),
            ast.BitAnd() | ast.Mult(),
            ast.Call(ast.Attribute(ast.Name(second), "unsqueeze"), [e]),
        ):
            return first == second and module.number(d) != module.number(e)
        case ast.BinOp(left, ast.BitAnd() | ast.Mult(), right):
            return _spread(module, left) is not None and _are_crossed(module, left, right)
    return False


def _are_crossed(module: Module, left: ast.expr, right: ast.expr) -> bool:
    """A mask of the rows and one of the columns: a row that is masked has no column left."""
    rows, columns = _spread(module, left), _spread(module, right)
    return rows is not None and columns is not None and rows != columns


def _spread(module: Module, node: ast.expr) -> str | None:
    """How a padding mask is spread over a matrix: `mask[:, :, None]`, `rearrange(mask, "b i -> b () i ()")`."""
    match values_of(module).origin(node):
        case ast.Subscript(ast.Name(name), ast.Tuple(places)) if _MASK.search(name):
            spread = ["None" if module.constant(p) is None else ":" for p in places]
            whole = all(isinstance(p, ast.Slice | ast.Constant) for p in places)
            return ",".join(spread) if whole and "None" in spread else None
        case ast.Call(args=[ast.Name(name), ast.Constant(str(pattern))]) as call if last_name(
            call
        ) == "rearrange" and _MASK.search(name):
            after = pattern.partition("->")[2].replace("()", "1").split()
            return ",".join("None" if p == "1" else ":" for p in after) if "1" in after else None
    return None


def _softmaxed(module: Module, call: ast.Call) -> bool:
    """What is filled goes into a softmax, directly or by its name, and nothing replaces the NaN."""
    function = module.function(call)
    text = module.segment(function) if function is not None else module.source.text
    return "softmax" in text and "nan_to_num" not in text and "isnan" not in text
