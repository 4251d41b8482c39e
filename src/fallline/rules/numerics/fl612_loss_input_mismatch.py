"""FL612: a loss gets logits, log-probabilities or probabilities where it expects another of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.losses import differentiated, in_loss, loss_calls
from fallline.flow.makers import Made, made_by
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module

_LOG_PROBABILITIES = ("nll_loss", "NLLLoss", "kl_div", "KLDivLoss")
_PROBABILITIES = ("binary_cross_entropy", "BCELoss")
_LOGITS = ("cross_entropy", "CrossEntropyLoss")
_LAYERS = frozenset({"linear", "conv1d", "conv2d", "conv3d"})
_SQUASHED = frozenset({"softmax", "sigmoid", "softmin", "hardsigmoid"})
_LOGS = frozenset({"log_softmax", "logsigmoid"})
_CUT = frozenset({"relu", "relu6"})
# What a loss expects, what it may not be given, and how to give it what it wants.
_MISMATCHES = (
    (_LOG_PROBABILITIES, "log-probabilities", _LAYERS | _SQUASHED, "Apply log_softmax first"),
    (_PROBABILITIES, "probabilities", _LAYERS | _LOGS, "Use binary_cross_entropy_with_logits"),
    (_LOGITS, "logits", _CUT, "Leave out the activation"),
)


_WANTED_BY = {
    "cross_entropy": ("logits", "Leave out the activation"),
    "binary_cross_entropy_with_logits": ("logits", "Leave out the activation"),
    "nll_loss": ("log-probabilities", "Use cross_entropy with the logits"),
    "kl_div": ("log-probabilities", "Apply log_softmax first"),
    "binary_cross_entropy": ("probabilities", "Use binary_cross_entropy_with_logits"),
}


class LossInputMismatch(Observed):
    code = "FL612"
    name = "loss-input-mismatch"
    severity = Severity.ERROR
    what = "A loss expects logits, log-probabilities or probabilities and gets a different one of these."
    why = """\
The number is still a number, so training runs, but it does not minimise the error that was meant.

`nll_loss` only picks and negates: of raw logits it can fall without bound while the predictions get no better, and of probabilities its slope is the same for a
sure and an unsure answer. `binary_cross_entropy` needs values between 0 and 1: logits outside stop the run. A ReLU before `cross_entropy` cuts off every
negative logit and its gradient, so a class that has gone negative cannot come back. (A softmax before `cross_entropy` is FL606.)"""
    instead = """\
Match the loss to what the model returns.

- logits: `F.cross_entropy`, `F.binary_cross_entropy_with_logits`
- log-probabilities (`F.log_softmax`): `F.nll_loss`, and the first argument of `F.kl_div`
- probabilities (`torch.sigmoid`): `F.binary_cross_entropy`"""
    tokens = (
        b"nll_loss",
        b"NLLLoss",
        b"kl_div",
        b"KLDivLoss",
        b"cross_entropy",
        b"BCELoss",
        b"CrossEntropy",
    )
    wrong = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
loss = F.nll_loss(model(inputs), targets)  # FL612
loss.backward()
""",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.body(x))
        return torch.softmax(self.head(x), dim=1)


model, criterion = Net(), nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
optimizer.zero_grad()
loss = criterion(model(inputs), targets)  # FL612
loss.backward()
optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU())
loss_fn = nn.CrossEntropyLoss()
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
loss = loss_fn(model(inputs), targets)  # FL612
loss.backward()
""",
        """\
import torch
import torch.nn.functional as F


def distil(student, teacher):
    return F.kl_div(F.softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")  # FL612


distil(torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)).backward()
""",
        """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.body(x))
        x = F.relu(self.head(x))
        return F.log_softmax(x, dim=1)  # FL612


model = Net()
F.nll_loss(model(torch.randn(16, 8)), torch.randint(0, 5, (16,))).backward()
""",
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
(F.nll_loss(F.log_softmax(model(inputs), dim=1), targets) + F.cross_entropy(model(inputs), targets)).backward()
optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.BCELoss()(model(torch.randn(4, 8)), torch.ones(4, 1)).backward()
optimizer.step()
""",
        """\
import torch
import torch.nn.functional as F


def distil(student, teacher):
    return F.kl_div(F.log_softmax(student, dim=1), F.softmax(teacher, dim=1), reduction="batchmean")


distil(torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)).backward()
""",
    )

    def says(self, entry: dict[str, Any]) -> str:
        wanted, instead = _WANTED_BY[entry["loss"]]
        given = "logits" if entry["given"] == "logits" else f"the result of {entry['given']}"
        return f"{entry['loss']} expects {wanted} but gets {given}, so the loss falls without the predictions getting better. {instead}"

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        return Severity.WARNING if entry["given"] == "relu" else None

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for losses, expected, mismatched, instead in _MISMATCHES:
            for call, loss in loss_calls(module, *losses):
                given = module.argument(call, 0, "input", "inputs")
                made = made_by(module, given) if given is not None else None
                if made is not None and made.op == "log_softmax" and _is_cut(made):
                    yield self.finding(
                        made.module.location(made.call),
                        "A ReLU comes before log_softmax, so every negative logit is 0 and has no gradient: a class that has gone negative cannot come back. "
                        "Leave out the activation of the last layer",
                        severity=Severity.WARNING,
                    )
                elif (
                    made is not None
                    and made.op in mismatched
                    and not _picks(module, call)
                    and differentiated(module, call)
                ):
                    severity = (
                        Severity.WARNING if losses is _LOGITS else None
                    )  # a cut logit may come back with luck
                    yield self.finding(
                        module.location(call),
                        f"{loss} expects {expected} but gets {_named(made.op)}, so the loss falls without the predictions getting better. {instead}",
                        severity=Severity.INFO if _is_affinity(module, call, given) else severity,
                        loss=loss,
                        given=made.op,
                    )


def _is_cut(made: Made) -> bool:
    """The logits under a log_softmax went through a ReLU."""
    logits = made_by(made.module, made.of) if made.of is not None else None
    return logits is not None and logits.op in _CUT


def _picks(module: Module, call: ast.Call) -> bool:
    """nll_loss as a gather: with `reduction="none"` it picks the entry of each label, and no loss is made of them."""
    reduction = module.argument(call, None, "reduction")
    return (
        reduction is not None and module.constant(reduction) == "none" and not in_loss(module, call)
    )


def _is_affinity(module: Module, call: ast.Call, given: ast.expr | None) -> bool:
    """One prediction against several stored ones, `F.kl_div(p.unsqueeze(1).expand(-1, k, -1), stored, reduction="none")`: minus their dot product, which is meant."""
    reduction = module.argument(call, None, "reduction")
    spread = values_of(module).origin(given) if given is not None else None
    return (
        last_name(call) == "kl_div"
        and reduction is not None
        and module.constant(reduction) == "none"
        and isinstance(spread, ast.Call)
        and last_name(spread) in {"expand", "expand_as", "repeat"}
    )


def _named(op: str) -> str:
    if op in _LAYERS:
        return "the logits of a layer"
    return f"the result of {op}"
