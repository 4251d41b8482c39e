"""FL609: a softmax over the batch instead of the classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import last_name, of_self, operand, receiver
from fallline.flow.collected import iterated
from fallline.flow.competing import over_one_value, over_the_samples
from fallline.flow.losses import loss_calls
from fallline.flow.makers import Made, made_by
from fallline.flow.mixing import fewest_dimensions, is_product, summed_by_place, weighted_sums
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Editor, Module

_SOFTMAX = frozenset({"softmax", "log_softmax"})
_PICKS = ("argmax", "max", "topk", "gather")
_LOSSES = ("nll_loss", "NLLLoss")

_IMPLICIT = ("torch.nn.functional.softmax", "torch.nn.functional.log_softmax")


class SoftmaxWrongDimension(Observed):
    code = "FL609"
    name = "softmax-wrong-dimension"
    severity = Severity.WARNING
    what = "A softmax runs over one dimension, such as the batch, and the code next to it reads the result along a different one."
    why = """\
Each class is normalised over the samples of the batch, so the samples compete with each other and the probabilities of one sample do not sum to 1.

The prediction for a sample then depends on which others are in its batch: training and evaluation disagree, and a batch of one always gives probability 1 for every class."""
    instead = "Normalise over what competes: `torch.softmax(logits, dim=1)`, or `dim=-1` when the classes come last."
    fix_safety = "Changes `dim` to the dimension that the code next to it reads."
    tokens = (b"softmax", b"Softmax")
    wrong = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
log_probs = F.log_softmax(model(inputs), dim=0)  # FL609
F.nll_loss(log_probs, targets).backward()
""",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return torch.softmax(self.head(x), dim=0)  # FL609


probs = Net()(torch.randn(16, 8))
print(probs.argmax(dim=1))
""",
        """\
import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 2)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        share = self.mix(tokens)
        share = torch.softmax(share, dim=1)  # FL609
        return self.left(tokens) * share[..., 0:1] + self.right(tokens) * share[..., 1:]


Mixed()(torch.randn(2, 5, 8)).sum().backward()
""",
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
F.nll_loss(F.log_softmax(model(inputs), dim=1), targets).backward()
optimizer.step()
""",
        """\
import torch


def attend(scores, values):
    weights = torch.softmax(scores, dim=0)
    return (weights.unsqueeze(-1) * values).sum(dim=0)


attend(torch.randn(6, 2), torch.randn(6, 2, 3))
state = torch.nn.Linear(4, 2)(torch.randn(4))
print(torch.softmax(state, dim=0).argmax())
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for made, right in {id(m.call): (m, d) for m, d in _contradicted(module)}.values():
            dim = _dim(module, made.call) if last_name(made.call) != "gumbel_softmax" else None
            over = module.segment(dim) if dim is not None else "-1"
            yield self.finding(
                module.location(made.call),
                f"This {made.op} runs over dimension {over}, but its result is read along dimension {right}, so the values that should compete with "
                f"each other do not sum to 1. Use `dim={right}`",
                dimension=right,
            )

        for call in _over_the_batch(module):
            yield self.finding(
                module.location(call),
                "This softmax names no dimension, and for a tensor with three PyTorch takes the first one, the batch: samples compete with each other. "
                "Write the dimension of the classes: `dim=-1`",
            )

        for call in _summed_over_the_last(module):
            yield self.finding(
                module.location(call),
                "This softmax names no dimension and its result is summed over the last one. With two dimensions PyTorch takes the last, with three the "
                "first and with more the second: the same code is wrong for a longer shape. Write `dim=-1`",
                severity=Severity.INFO,
            )

        for call in over_one_value(module):
            yield self.finding(
                module.location(call),
                "This softmax runs over a dimension of one value, so its result is always 1 and no gradient passes. "
                "Name the dimension whose values compete, or use a sigmoid for a single score",
            )
        for call in over_the_samples(module):
            yield self.finding(
                module.location(call),
                "This softmax runs over dimension 0 of logits. If they are those of a batch, samples compete with "
                "each other instead of the classes of each. Use `dim=-1`",
                severity=Severity.INFO,
            )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"This loss reads a softmax of shape {entry['shape']} along dimension {entry['dimension']}, but the softmax runs over dimension {entry['over']}, "
            f"so the values that should compete with each other do not sum to 1. Use `dim={entry['dimension']}`"
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        dim = _dim(module, call) if call is not None else None
        right = finding.evidence.get("dimension")
        edits: tuple[Edit, ...] = (Editor(module).replace(dim, str(right)),) if dim else ()
        return Fix("Normalise over the classes", edits) if edits else None


def _over_the_batch(module: Module) -> Iterator[ast.Call]:
    """`F.softmax(x)` without a dimension, where the code shows that x has three of them."""
    for call in module.calls(*_IMPLICIT):
        if len(call.args) != 1 or call.keywords:
            continue
        named = values_of(module).named(call)
        uses: list[ast.AST] = [call]
        if named is not None:
            uses += values_of(module).uses(named[1].id, module.scope(call), named[0])
        if any(_has_three(module, use) for use in uses):
            yield call


def _summed_over_the_last(module: Module) -> Iterator[ast.Call]:
    """`(targets * F.log_softmax(logits)).sum(dim=-1)`, of logits that may have more than two dimensions."""
    for call in module.calls(*_IMPLICIT):
        if len(call.args) != 1 or call.keywords:
            continue
        here: ast.AST | None = module.parent(call)
        while isinstance(here, ast.BinOp | ast.UnaryOp):
            here = module.parent(here)
        if isinstance(here, ast.Attribute):  # `(...).sum(-1)`
            here = module.parent(here)
        if isinstance(here, ast.Call) and last_name(here) == "sum":
            if module.number(operand(module, here, "dim")) == -1:
                yield call


def _has_three(module: Module, use: ast.AST) -> bool:
    """`x[:, :, i]`, `torch.bmm(x, y)`."""
    match module.parent(use):
        case ast.Subscript(value, ast.Tuple([_, _, _] as index)) if value is use:
            return not any(isinstance(i, ast.Constant) and i.value in (..., None) for i in index)
        case ast.Call(func, [first, _]) if module.resolve(func) == "torch.bmm":
            return first is use
    return False


def _contradicted(module: Module) -> Iterator[tuple[Made, int]]:
    """The softmaxes over one dimension whose result is read along another, and which that is."""
    for node in _read_by_class(module):
        made = _softmax(module, node)
        if made is not None and module.number(_dim(module, made.call)) == 0:
            yield made, 1
    for node in _parted_at_the_end(module):
        made = _softmax(module, node)
        if made is not None and (module.number(_dim(module, made.call)) or 0) > 0:
            yield made, -1
    for rows in _read_row_by_row(module):
        made = _softmax(module, rows)
        if made is not None and module.number(_dim(module, made.call)) == 0:
            yield made, -1
    yield from _of_one_comparison(module)
    for call, summed in summed_by_place(module):
        over = module.number(_dim(module, call))
        if over is not None and 0 <= over != summed:
            yield Made("softmax", call, module), summed
    for call, dims, summed in weighted_sums(module):
        over = (
            _gumbel_dim(module, call)
            if last_name(call) == "gumbel_softmax"
            else module.number(_dim(module, call))
        )
        if over is not None and (dims is not None or over < 0):
            place = int(over) + (dims or 0) * (over < 0)
            if place != summed:
                yield Made("softmax", call, module), summed if summed + 1 != dims else -1
        elif (
            over is not None
            and dims is None
            and over + 1 < fewest_dimensions(module, call)
            and is_product(module, call)
        ):
            yield Made("softmax", call, module), -1


def _of_one_comparison(module: Module) -> Iterator[tuple[Made, int]]:
    """Of two softmaxes that are compared, the one that runs over the samples."""
    for pair in _compared(module):
        first, second = (module.number(_dim(module, made.call)) for made in pair)
        if first is None or second is None or first == second or min(first, second) < 0:
            continue
        if 0 in (first, second):
            yield (pair[0], int(second)) if first == 0 else (pair[1], int(first))


def _compared(module: Module) -> Iterator[tuple[Made, Made]]:
    """The two softmaxes of `kl_div(student.log_softmax(0), teacher.softmax(1))`, which are over the same classes."""
    for call, _ in loss_calls(module, "kl_div", "KLDivLoss"):
        sides = [module.argument(call, i, name) for i, name in enumerate(("input", "target"))]
        found = [_softmax(module, side) for side in sides]
        match found:
            case [Made() as one, Made() as other]:
                yield one, other


def _softmax(module: Module, node: ast.expr | None) -> Made | None:
    made = made_by(module, node) if node is not None else None
    return made if made is not None and made.op in _SOFTMAX and made.module is module else None


def _read_by_class(module: Module) -> Iterator[ast.expr | None]:
    """What goes into nll_loss, or is asked for its largest entry along dimension 1."""
    for call, _ in loss_calls(module, *_LOSSES):
        yield module.argument(call, 0, "input")
    for call in module.method_calls(*_PICKS):
        match call.func:
            case ast.Attribute(value) if module.number(operand(module, call, "dim")) == 1:
                yield value


def _read_row_by_row(module: Module) -> Iterator[ast.expr]:
    """`probs` of `for p in probs: p.max(0)`: each row is asked for its largest entry, so the classes come last."""
    for call in module.method_calls("argmax", "max", "topk"):
        of = receiver(module, call)
        dim = operand(module, call, "dim", place=int(last_name(call) == "topk"))
        if not isinstance(of, ast.Name) or (dim is not None and module.number(dim) not in (0, -1)):
            continue
        match module.bindings(of.id, module.scope(of)):
            case [target]:
                rows = iterated(module, target)
                if rows is not None:
                    yield rows


def _parted_at_the_end(module: Module) -> Iterator[ast.expr]:
    """`weights` of `weights[..., 0:1] * a + weights[..., 1:] * b`: the last dimension holds what is mixed, and there are more before it."""
    for node in module.all(ast.Subscript):
        match node:
            case ast.Subscript(
                value,
                ast.Tuple(
                    [
                        ast.Constant(v),
                        ast.Slice(None, ast.Constant(1))
                        | ast.Slice(ast.Constant(0), ast.Constant(1)),
                    ]
                ),
            ) if v is ...:
                yield value


def _gumbel_dim(module: Module, call: ast.Call) -> float | None:
    """`F.gumbel_softmax(logits, tau, hard, eps, dim)`: the last one where it is not given."""
    given = module.argument(call, 4, "dim")
    return -1.0 if given is None else module.number(given)


def _dim(module: Module, call: ast.Call) -> ast.expr | None:
    """The dimension of a softmax: a function's or method's argument, or that of the layer that is called."""
    if last_name(call) in _SOFTMAX and of_self(call.func) is None:
        return operand(module, call, "dim")
    made = values_of(module).constructed(call.func)
    return module.argument(made, 0, "dim") if made is not None else None
