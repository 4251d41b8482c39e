"""FL605: softmax, then log, then pick: the fused operation taken apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import operations, receiver
from fallline.flow.losses import in_loss
from fallline.flow.makers import Made, own_similarity
from fallline.flow.reached import computes_in_half, seen_to_train
from fallline.flow.softmax import (
    log_of,
    logits_of,
    peeled,
    rebuilt,
    softened,
    softmax_behind,
    weighed,
)
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_LESSON = re.compile(
    r"(?i)(^|[/\\_ -])(courses?|lectures?|lessons?|tutorials?|homeworks?|hw\d+|assignments?|exercises?|chapter[-_ ]?\d*|ch\d+|(from[-_ ]?)?scratch)([/\\_. -]|\d|$)"
)


class HandWrittenCrossEntropy(Rule):
    code = "FL605"
    name = "hand-written-cross-entropy"
    severity = Severity.INFO
    what = "A cross-entropy is written by hand: softmax, log, and a pick or a weighted sum over classes, in any order."
    why = """\
A softmax can be exactly 0 in float32 (logits 104 apart, in float16 18), and then the log is -inf.

With an epsilon or a clamp the loss stays finite but flat: a badly wrong sample gets no gradient, the one that needs it most.
The fused operation subtracts the largest logit first and never leaves log space: it gives the exact loss for logits of ±10,000."""
    instead = """\
Give the logits to the fused operation.

- `F.cross_entropy(logits, targets)`, also with class probabilities as targets and with `label_smoothing`
- where the log-probabilities themselves are needed (focal loss, policy gradients): `F.log_softmax(logits, dim)`"""
    fix_safety = "Safe: log_softmax is the log of the softmax, without underflow. An epsilon in between is dropped."
    facts = ("cross-entropy-is-stable",)
    tokens = (b"softmax", b"Softmax", b"exp(")
    wrong = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = 500 * torch.randn(16, 8), torch.randint(0, 5, (16,))
probs = F.softmax(model(inputs), dim=1)
loss = -torch.log(probs[torch.arange(16), targets]).mean()  # FL605
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
        """\
import torch


def soft_cross_entropy(logits, soft_targets):
    log_probs = torch.log(torch.softmax(logits, dim=-1) + 1e-8)  # FL605
    return -(soft_targets * log_probs).sum(dim=-1).mean()


soft_cross_entropy(torch.randn(4, 3, requires_grad=True), torch.full((4, 3), 1 / 3)).backward()
""",
        """\
import torch
from torch import nn


class PolicyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, logits, actions, advantages):
        probs = self.softmax(logits)
        chosen = probs.gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(chosen.log() * advantages).mean()  # FL605


PolicyLoss()(200 * torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]), torch.ones(4)).backward()
""",
        """\
import torch


def contrastive_loss(images, texts, temperature=0.01):
    similarity = images @ texts.T / temperature
    exp_sim = torch.exp(similarity)
    probs = exp_sim / exp_sim.sum(dim=-1, keepdim=True)
    return -torch.log(probs.diagonal()).mean()  # FL605


contrastive_loss(torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)).backward()
""",
        """\
import torch
import torch.nn.functional as F


def train_step(model, inputs, targets):
    output = model(inputs).softmax(dim=1)
    loss = F.nll_loss(output.log(), targets)  # FL605
    loss.backward()


train_step(torch.nn.Linear(4, 3), 500 * torch.randn(8, 4), torch.randint(0, 3, (8,)))
""",
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
inputs, targets = 500 * torch.randn(16, 8), torch.randint(0, 5, (16,))
F.cross_entropy(model(inputs), targets).backward()
""",
        """\
import torch
import torch.nn.functional as F


def focal_loss(logits, targets, gamma=2.0):
    log_probs = F.log_softmax(logits, dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)
    probs = log_probs.exp()
    return -((1 - probs) ** gamma * log_probs).mean()


focal_loss(200 * torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])).backward()
""",
        """\
import torch


def beam_scores(model, tokens, width):
    with torch.no_grad():
        probs = torch.softmax(model(tokens), dim=-1)
    scores = torch.log(probs)
    return scores.topk(width, dim=-1)


print(beam_scores(torch.nn.Linear(4, 3), torch.randn(2, 4), 2))
""",
        """\
import torch


def attention(query, key, value, bias):
    weights = torch.softmax(query @ key.transpose(-2, -1) + torch.log(bias), dim=-1)
    return weights @ value


x = torch.randn(2, 3, 4, requires_grad=True)
attention(x, x, x, torch.ones(3)).sum().backward()
""",
        """\
import torch
import torch.nn.functional as F


def self_similarity_loss(embeddings, temperature=0.07):
    embeddings = F.normalize(embeddings, dim=-1)
    similarity = torch.matmul(embeddings, embeddings.T) / temperature
    probs = F.softmax(similarity, dim=-1)
    return -torch.log(probs.diagonal()).mean()  # the largest of its row: never below 1 / N


self_similarity_loss(torch.randn(4, 8, requires_grad=True)).backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in operations(module, "log"):
            of = receiver(module, call)
            if of is None or (module.resolve(call.func) is None and call.args):
                continue
            probabilities, picked = peeled(module, of)
            logits = logits_of(module, probabilities)
            if logits is None or _harmless(module, logits, of):
                continue
            if (picked or weighed(module, call, probabilities)) and in_loss(module, call):
                yield self.finding(
                    module.location(call),
                    "This cross-entropy is written by hand (softmax, log, then the entry of the target): where the softmax underflows, the loss is -inf, or flat if it is clamped, "
                    "and the sample gets no gradient. Pass the logits to F.cross_entropy or F.log_softmax",
                    # lectures write it by hand on purpose; with an epsilon it is finite, and flat only for the worst samples
                    # in float32 it underflows only where two logits lie 104 apart
                    severity=Severity.WARNING
                    if computes_in_half(module)
                    and seen_to_train(module, call, logits)
                    and not (
                        _is_lesson(module) or softened(module, of) or _only_shown(module, call)
                    )
                    else Severity.INFO,
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        of = receiver(module, call) if call is not None else None
        if call is None or of is None:
            return None
        probabilities, _ = peeled(module, of)
        made = softmax_behind(module, probabilities)
        if made is None:
            return None
        moved = _moved(module, call, of, probabilities, made)
        if moved is not None:
            return Fix("Take the log where the softmax is: log_softmax", moved)
        stable = log_of(module, made, call)
        text = rebuilt(module, of, probabilities, stable) if stable is not None else None
        if text is None:
            return None
        return Fix(f"Write `{' '.join(text.split())}`", (Editor(module).replace(call, text),))


def _is_lesson(module: Module) -> bool:
    """A notebook, or a file of a course: what others import is written there by hand, to show it."""
    return module.path.endswith(".ipynb") or _LESSON.search(module.path) is not None


def _only_shown(module: Module, call: ast.Call) -> bool:
    """At the top of a file that trains nothing: a few numbers, to show what cross-entropy is."""
    return module.function(call) is None and not any(module.method_calls("backward"))


def _harmless(module: Module, logits: ast.expr, of: ast.expr) -> bool:
    picked = module.segment(values_of(module).origin(of))
    return "diag" in picked and own_similarity(module, logits)


def _moved(
    module: Module, call: ast.Call, of: ast.expr, probabilities: ast.expr, made: Made
) -> tuple[Edit, ...] | None:
    """`p = softmax(x)` used only in this log: make it `log_p = log_softmax(x)`, so that nothing is computed twice."""
    match module.parent(made.call), probabilities:
        case ast.Assign([target]), ast.Name(name) if made.module is module:
            scope, other = module.scope(probabilities), f"log_{name}"
        case _:
            return None
    bound = module.bindings(name, scope)
    if len(bound) != 1 or bound[0] is not target:
        return None
    taken = module.bindings(other, scope) or other in module.imports
    if taken or len(values_of(module).uses(name, scope)) != 1:
        return None
    text = rebuilt(module, of, probabilities, other)
    stable = log_of(module, made, made.call)
    if text is None or stable is None:
        return None
    editor = Editor(module)
    return (
        editor.replace(target, other),
        editor.replace(made.call, stable),
        editor.replace(call, text),
    )
