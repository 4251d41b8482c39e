"""FL601: the logarithm of a value that can reach zero or below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.algebra import DEAD_BRANCH, Range
from fallline.flow.calls import last_name, operations, receiver
from fallline.flow.gradients import takes_no_gradient
from fallline.flow.losses import in_loss, unguarded
from fallline.flow.makers import Made, made_by
from fallline.flow.places import in_training
from fallline.flow.reached import computes_in_half, seen_to_train
from fallline.flow.softmax import log_of
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_LOGS = ("log", "log2", "log10")
# Of these no more is known than that they may be zero somewhere, or they carry no gradient.
_NOT_SAID = frozenset(
    {
        "difference",
        "abs",
        "square",
        "target",
        "rand",
        "rand_like",
        "zeros",
        "randn",
        "std",
        "var",
        "normalize",
    }
)


_CLAMPS_SIGMOID = re.compile(
    r"sigmoid[^\n]*\bclamp|\bclamp[^\n]*sigmoid|clamp\w*_sigmoid|sigmoid_clamp"
)


class LogUnguarded(Rule):
    code = "FL601"
    name = "log-unguarded"
    severity = Severity.WARNING
    yields_to = ("FL605",)
    yields_within = "line"
    what = "A loss takes the logarithm of a value that can reach zero or go below it."
    why = """\
One such value makes the whole loss infinite or NaN, and the next step writes NaN into every weight.

`log(0)` is -inf with an infinite gradient; the log of a negative number is NaN. Probabilities do reach 0: in float32
`sigmoid(-89)` and a softmax whose logits lie 104 apart are exactly 0. Adding an epsilon helps only where the value cannot
be negative: `log(-0.1 + 1e-8)` is still NaN. `torch.where(x > 0, torch.log(x), 0)` looks safe and is not: the branch that is
not taken still sends back 0 times infinity, which is NaN."""
    instead = """\
Take the logarithm where it is stable.

- of a softmax: `F.log_softmax(logits, dim)`; of a sigmoid: `F.logsigmoid(logits)`; of one minus it: `F.logsigmoid(-logits)`
- of a value that can be small: `torch.log(x.clamp_min(1e-6))`
- under a condition: choose the input first, `torch.log(torch.where(x > 0, x, 1.0))`"""
    fix_safety = (
        "Safe: log_softmax and logsigmoid are the same function, computed without underflow."
    )
    facts = (
        "log-plus-epsilon",
        "epsilon-vanishes-in-fp16",
        "log-of-zero-is-inf",
        "finite-loss-nan-gradient",
    )
    tokens = (b"log(", b"log2(", b"log10(")
    wrong = (
        """\
import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    rate = model(torch.randn(64, 4))
    loss = (rate - torch.log(rate + 1e-8)).mean()  # FL601
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def likelihood_loss(logits):
    return -torch.log(torch.sigmoid(logits)).mean()  # FL601


inputs = 200 * torch.randn(32, 8)
loss = likelihood_loss(model(inputs))
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
        """\
import torch


def entropy_loss(weights):
    terms = torch.where(weights > 0, weights * torch.log(weights), torch.zeros_like(weights))  # FL601
    return -terms.sum(dim=-1).mean()


weights = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
entropy_loss(weights).backward()
""",
        """\
import torch
import torch.nn.functional as F


class DiscriminatorLoss(torch.nn.Module):
    def forward(self, real_logits, fake_logits):
        real = real_logits.sigmoid()
        fake = fake_logits.sigmoid()
        loss_real = -torch.log(real.clamp(min=1e-6)).mean()
        loss_fake = -(1 - fake).log().mean()  # FL601
        return loss_real + loss_fake


loss = DiscriminatorLoss()(torch.randn(4, requires_grad=True), torch.tensor([1.0, 2.0, 30.0, 40.0], requires_grad=True))
loss.backward()
""",
        """\
import torch


def pair_loss(chosen, rejected, first):
    assert first > 0
    chosen, rejected_part = chosen[first:], rejected[first:]
    return -torch.log(torch.sigmoid(chosen - rejected_part)).mean()  # FL601


pair_loss(torch.zeros(4, requires_grad=True), torch.full((4,), 200.0), 1).backward()
""",
        """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def act(self, x, action=None):
        probs = torch.softmax(self.body(x), dim=1)
        if action is None:
            action = probs.argmax(1)
        return action, probs[torch.arange(len(x)), action]


policy = Policy()
_, chosen = policy.act(100 * torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
loss = -chosen.log2().mean()  # FL601
loss.backward()
""",
    )
    right = (
        # an entropy that is only looked at: what goes in is detached
        """\
import torch


def entropy(p):
    plogp = p * torch.log(p)
    plogp[p == 0] = 0
    return -plogp.sum(dim=-1)


attention = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
print(entropy(attention.detach()))
""",
        """\
import torch
import torch.nn.functional as F


def likelihood_loss(logits):
    return -F.logsigmoid(logits).mean()


likelihood_loss(torch.full((3,), -200.0, requires_grad=True)).backward()
""",
        """\
import torch


def nll_loss(pred):
    return -torch.log(pred.clamp(min=1e-7)).mean()


nll_loss(torch.zeros(3, requires_grad=True)).backward()
""",
        """\
import torch
import torch.nn.functional as F


def poisson_loss(raw, counts):
    rate = F.softplus(raw) + 1e-6
    return (rate - counts * torch.log(rate)).mean()


poisson_loss(torch.full((3,), -200.0, requires_grad=True), torch.ones(3)).backward()
""",
        """\
import torch


def entropy_loss(weights):
    safe = torch.where(weights > 0, weights, torch.ones_like(weights))
    return -(weights * torch.log(safe)).sum(dim=-1).mean()


entropy_loss(torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)).backward()
""",
        """\
import torch


@torch.no_grad()
def perplexity(probs):
    return torch.exp(-torch.log(probs).mean())


def log_ratio_loss(x):
    return torch.log1p(x.abs()).mean() + torch.log(1 + x.exp()).mean()


print(perplexity(torch.full((3,), 0.5)))
log_ratio_loss(torch.zeros(3, requires_grad=True)).backward()
""",
        """\
import torch


class PairLoss(torch.nn.Module):
    def keep_above(self, x):
        return x + 1e-4

    def forward(self, real_outputs, fake_outputs):
        real_outputs = self.keep_above(real_outputs)
        fake_outputs = self.keep_above(1 - fake_outputs)
        return -(torch.log(real_outputs) + torch.log(fake_outputs)).mean()


PairLoss()(torch.rand(4, requires_grad=True), torch.rand(4)).backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call, of, found in _logs(module):
            # a sum of exponentials under a mask has one in every row; a mean over samples is above 0 where one of them is
            sure = (not found.guessed and found.source != "exp" and not _is_mean(module, of)) or (
                _paired(module, of) and not _clamped_before(module, of)
            )
            # in float32 a sigmoid is 0 from -104 on, but 1 minus it from 17 on
            met = (
                found is DEAD_BRANCH
                or found.low < 0
                or _complement(module, of) is not None
                or _paired(module, of)
                or computes_in_half(module)
            )
            yield self.finding(
                module.location(call),
                _message(of, found),
                severity=None
                if sure and met and in_loss(module, call) and seen_to_train(module, call, of)
                else Severity.INFO,
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        edits, title = [], ""
        for call, of, _ in _logs(module):
            if call.lineno != finding.at.line:
                continue
            negative, made = _squashed(module, of)
            text = log_of(module, made, call, negative) if made is not None else None
            if text is None:
                return None  # the line would still be wrong
            title = title or f"Write `{' '.join(text.split())}`"
            edits.append(Editor(module).replace(call, text))
        return Fix(title, tuple(edits)) if edits else None


def _logs(module: Module) -> Iterator[tuple[ast.Call, ast.expr, Range]]:
    """The logs that are reported, with what they are taken of and its range."""
    for call in operations(module, *_LOGS):
        of = _argument(module, call)
        found = unguarded(module, call, of, _reaches_zero)
        if of is None or found is None:
            continue
        if in_training(module, call) and not takes_no_gradient(module, of):
            yield call, of, found


def _reaches_zero(found: Range) -> bool:
    return found.low <= 0 and found.source not in _NOT_SAID


def _argument(module: Module, call: ast.Call) -> ast.expr | None:
    """What the log is taken of. `self.log("loss", loss)` and `logger.log(...)` are not logarithms."""
    if module.resolve(call.func) is None and (call.args or call.keywords):
        return None
    return receiver(module, call)


def _paired(module: Module, of: ast.expr) -> bool:
    """The log of this and of one minus this in one function, or of any two in one statement: probabilities, whatever they are called."""
    scope, statement = module.scope(of), module.statement(of)
    logs = [
        a
        for call in operations(module, *_LOGS)
        if module.scope(call) is scope and (a := _argument(module, call)) is not None
    ]
    beside = {_complement(module, a) is None for a in logs if module.statement(a) is statement}
    if len(beside) == 2:
        return True
    ones_minus = {_written(c) for a in logs if (c := _complement(module, a)) is not None}
    plain = {_written(a) for a in logs if _complement(module, a) is None}
    return _written(_complement(module, of) or of) in ones_minus & plain


def _is_mean(module: Module, of: ast.expr) -> bool:
    """`probs.mean(0)`: what all samples predict together."""
    made = values_of(module).origin(of)
    return isinstance(made, ast.Call) and last_name(made) == "mean"


def _clamped_before(module: Module, of: ast.expr) -> bool:
    """It is an argument, and somebody in this folder clamps probabilities: the callers of a loss often do it for it."""
    name, function = _complement(module, of) or of, module.function(of)
    if not isinstance(name, ast.Name) or not isinstance(function, ast.FunctionDef):
        return False
    if name.id not in {a.arg for a in function.args.args}:
        return False
    beside = module.project.beside(module, b"clamp") if module.project is not None else []
    return any(_CLAMPS_SIGMOID.search(m.source.text) for m in (module, *beside))


def _complement(module: Module, node: ast.AST) -> ast.expr | None:
    """`p` of `1 - p`."""
    match node:
        case ast.BinOp(one, ast.Sub(), of) if module.number(one) == 1:
            return of
    return None


def _written(node: ast.expr) -> str:
    """As it is written; of a call, what is called: `log D(x) + log(1 - D(G(z)))` is one discriminator."""
    return ast.dump(node.func if isinstance(node, ast.Call) else node)


def _squashed(module: Module, of: ast.expr) -> tuple[bool, Made | None]:
    """The softmax or sigmoid this is, and whether it is one minus it."""
    positive = _complement(module, values_of(module).origin(of))
    if positive is not None:
        return True, made_by(module, positive)
    return False, made_by(module, of) if isinstance(of, ast.Name | ast.Call) else None


def _message(of: ast.expr, found: Range) -> str:
    if found is DEAD_BRANCH:
        return (
            "This log is inside torch.where: the branch that is not taken still sends back 0 times infinity, so the gradient is NaN. "
            "Choose the input first: `torch.log(torch.where(x > 0, x, 1.0))`"
        )
    if found.low < 0:
        if isinstance(of, ast.BinOp):
            return f"This takes the log of a value that can be negative ({found.said}), which makes the loss NaN; adding an epsilon does not help below zero. Clamp it: `x.clamp_min(1e-6).log()`"
        return f"This takes the log of a value that can be negative ({found.said}), which makes the loss NaN. Clamp it: `x.clamp_min(1e-6).log()`"
    return f"This takes the log of a value that can be exactly 0 ({found.said}), which makes the loss -inf and its gradient infinite. Use log_softmax or logsigmoid, or clamp it: `x.clamp_min(1e-6).log()`"
