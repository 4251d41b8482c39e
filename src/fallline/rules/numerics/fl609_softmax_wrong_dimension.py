"""FL609: a softmax over the batch instead of the classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import last_name, operand
from fallline.flow.losses import loss_calls
from fallline.flow.makers import Made, made_by
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_SOFTMAX = frozenset({"softmax", "log_softmax"})
_PICKS = ("argmax", "max", "topk", "gather")
_LOSSES = ("nll_loss", "NLLLoss")


class SoftmaxWrongDimension(Rule):
    code = "FL609"
    name = "softmax-wrong-dimension"
    severity = Severity.WARNING
    what = "A softmax runs over dimension 0, the batch, and the code next to it takes dimension 1 for the classes."
    why = """\
Each class is normalised over the samples of the batch, so the samples compete with each other and the probabilities of one sample do not sum to 1.

The prediction for a sample then depends on which others are in its batch: training and evaluation disagree, and a batch of one always gives probability 1 for every class."""
    instead = "Normalise over the classes: `torch.softmax(logits, dim=1)`, or `dim=-1` when they come last."
    fix_safety = "Changes `dim=0` to `dim=1`, which the code next to it uses for the classes."
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
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
F.nll_loss(F.log_softmax(model(inputs), dim=1), targets).backward()
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
        for made in {id(m.call): m for m in _contradicted(module)}.values():
            yield self.finding(
                made.module.location(made.call),
                f"This {made.op} runs over dimension 0, the batch, but the result is read by classes along dimension 1, so samples compete with "
                "each other instead of classes. Use `dim=1`",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        dim = _dim(module, call) if call is not None else None
        edits: tuple[Edit, ...] = (Editor(module).replace(dim, "1"),) if dim is not None else ()
        return Fix("Normalise over the classes", edits) if edits else None


def _contradicted(module: Module) -> Iterator[Made]:
    """The softmaxes over dimension 0 whose result is used as if dimension 1 held the classes."""
    read: list[ast.expr | None] = [
        module.argument(call, 0, "input") for call, _ in loss_calls(module, *_LOSSES)
    ]
    read += [
        call.func.value
        for call in module.method_calls(*_PICKS)
        if module.number(operand(module, call, "dim")) == 1 and isinstance(call.func, ast.Attribute)
    ]
    for node in read:
        made = made_by(module, node) if node is not None else None
        if made is not None and made.op in _SOFTMAX and made.module is module:
            dim = _dim(module, made.call)
            if dim is not None and module.number(dim) == 0:
                yield made


def _dim(module: Module, call: ast.Call) -> ast.expr | None:
    """The dimension of a softmax: a function's or method's argument, or that of the layer that is called."""
    if last_name(call) in _SOFTMAX:
        return operand(module, call, "dim")
    made = values_of(module).constructed(call.func)
    return module.argument(made, 0, "dim") if made is not None else None
