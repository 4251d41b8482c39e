"""FL604: exp of an unbounded value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.algebra import Range
from fallline.flow.calls import last_name, operations, receiver
from fallline.flow.losses import guarded
from fallline.flow.places import in_training
from fallline.flow.ranges import range_of
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module

# ln of the largest float32: exp of more is infinite.
OVERFLOWS = 88.72
_NOT_SAID = frozenset(
    {
        "difference",
        "exp",
        "softplus",
        "mse_loss",
        "mseloss",
        "l1_loss",
        "var",
        "std",
        "randn",
        "target",
    }
)
# A log-variance or log-temperature is learned near zero: its exp is how it is meant to be read.
_LOG_SCALE = re.compile(r"log_?(var|std|sigma|scale|alpha|temp|s2)|logit_scale", re.I)


class ExpUnguarded(Rule):
    code = "FL604"
    name = "exp-unguarded"
    severity = Severity.INFO
    what = "A loss takes exp of a value that has no upper bound, such as logits."
    why = """\
exp is infinite above 88.72 in float32, 88.5 in bfloat16 and 11.09 in float16, and infinity divided by infinity is NaN.

Logits exceed these bounds in a run that diverges; in float16 they do in healthy runs too. Under CUDA autocast exp runs in float32; under CPU autocast and after
`.half()` it does not."""
    instead = """\
Stay in log space, or bound the argument.

- `torch.logsumexp(x, dim)` for `log(sum(exp(x)))`; `F.softplus(x)` for `log(1 + exp(x))`; `torch.softmax(x, dim)` for `exp(x) / sum(exp(x))`
- `torch.exp(x - x.amax(dim, keepdim=True))`, or `torch.exp(x.clamp(max=20))`"""
    facts = ("fp16-exp-limit", "autocast-exp-is-fp32-on-cuda", "temperature-and-exp", "exp-limits")
    tokens = (b"exp(", b"expm1(", b"exp2(")
    wrong = (
        """\
import torch


def energy_loss(logits):
    return torch.exp(logits).sum(dim=1).mean()  # FL604


energy_loss(torch.full((2, 3), 100.0, requires_grad=True)).backward()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
torch.nn.init.ones_(model.weight)
inputs, counts = 400 * torch.ones(8, 4), torch.ones(8, 1)
log_rate = model(inputs)
loss = (log_rate.exp() - counts * log_rate).mean()  # FL604
loss.backward()
""",
        """\
import torch


class ExponentialLoss(torch.nn.Module):
    def forward(self, logits, signs):
        return torch.log(1 + torch.exp(-logits)).mean()  # FL604


ExponentialLoss()(torch.full((3,), -100.0, requires_grad=True), torch.ones(3)).backward()
""",
    )
    right = (
        """\
import torch


def energy_loss(logits):
    return torch.logsumexp(logits, dim=1).mean()


energy_loss(torch.full((2, 3), 100.0, requires_grad=True)).backward()
""",
        """\
import torch


def vae_loss(recon, x, mu, logvar):
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    return ((recon - x) ** 2).sum() + kl


x = torch.zeros(3, requires_grad=True)
vae_loss(x, torch.ones(3), x, x).backward()
""",
        """\
import torch


def ppo_loss(log_probs, old_log_probs, advantages, clip=0.2):
    ratio = torch.exp(log_probs - old_log_probs)
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()


ppo_loss(torch.zeros(3, requires_grad=True), torch.zeros(3), torch.ones(3)).backward()
""",
        """\
import torch
import torch.nn.functional as F


def contrastive_loss(logits, other):
    shifted = torch.exp(logits - logits.max()).sum() + torch.exp(logits.clamp(max=20.0)).mean()
    cosine = F.normalize(other, dim=-1) @ F.normalize(other, dim=-1).T
    return shifted + torch.exp(F.log_softmax(logits, dim=-1)).sum() + torch.exp(cosine / 0.07).mean()


x = torch.full((2, 3), 100.0, requires_grad=True)
contrastive_loss(x, x).backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in operations(module, "exp", "expm1", "exp2"):
            of = receiver(module, call)
            found = range_of(module, of)
            if (
                of is None
                or found is None
                or not (_overflows(found) or _is_raw(module, of, found))
                or not in_training(module, call)
            ):
                continue
            if not guarded(module, of) and not _LOG_SCALE.search(module.segment(of)):
                yield self.finding(
                    module.location(call),
                    f"This takes the exp of a value without an upper bound ({found.said}); above {OVERFLOWS} it is infinite in float32, and so is the loss. Use logsumexp or softplus, or clamp the value",
                    bound=OVERFLOWS,
                )


def _overflows(found: Range) -> bool:
    return found.high > OVERFLOWS and found.source not in _NOT_SAID


def _is_raw(module: Module, of: ast.expr, found: Range) -> bool:
    """What a network gives whose last layer is not in view, as it is."""
    made = values_of(module).origin(of)
    clamped = isinstance(made, ast.Call) and last_name(made).startswith("cl")
    return found.source.startswith("the output of") and not clamped
