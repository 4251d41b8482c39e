"""FL606: probabilities where the loss expects logits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import of_self
from fallline.flow.losses import loss_calls
from fallline.flow.makers import Made, made_by, output_of
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import is_name

_FUNCTIONS = (
    "cross_entropy",
    "binary_cross_entropy_with_logits",
    "multilabel_soft_margin_loss",
    "soft_margin_loss",
    "sigmoid_focal_loss",
)
_CLASSES = (
    "CrossEntropyLoss",
    "BCEWithLogitsLoss",
    "MultiLabelSoftMarginLoss",
    "SoftMarginLoss",
    "LabelSmoothingCrossEntropy",
    "SoftTargetCrossEntropy",
)
_OUTPUT = re.compile(r"train|eval|infer|test|prob|logit|softmax|sigmoid|activ|apply|loss", re.I)
_PROBABILITIES = frozenset({"softmax", "sigmoid", "softmin", "hardsigmoid"})


class DoubleSoftmax(Observed):
    code = "FL606"
    name = "double-softmax"
    severity = Severity.ERROR
    what = "A loss that expects logits, and squashes them itself, is given probabilities."
    why = """\
The model trains, but far more slowly, and nothing says so: the loss squashes what is already squashed.

`cross_entropy` of a softmax over 10 classes cannot go below 1.46, whatever the model learns, and its gradient almost vanishes where the model is confident and
wrong. `binary_cross_entropy_with_logits` of a sigmoid sees only values between 0 and 1 and cannot go below 0.31 for a positive label."""
    instead = """\
Give the loss the logits, and squash only where probabilities are read.

- remove the softmax or sigmoid before `cross_entropy` or `binary_cross_entropy_with_logits`
- a model that must return probabilities: return `log_softmax` and use `nll_loss`, or use `binary_cross_entropy` after a sigmoid
- targets may well be probabilities; `log_softmax` before `cross_entropy` changes nothing"""
    fix_safety = "Safe: the logits reach the loss as it expects them. Where the model itself ends in a softmax, the layer is not touched."
    tokens = (
        b"cross_entropy",
        b"CrossEntropy",
        b"BCEWithLogits",
        b"SoftMargin",
        b"soft_margin",
        b"focal_loss",
    )
    wrong = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
    output = F.softmax(model(inputs), dim=1)
    loss = F.cross_entropy(output, targets)  # FL606
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 5)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = torch.relu(self.body(x))
        x = self.head(x)
        return self.softmax(x)


model = Net().to("cpu")
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
optimizer.zero_grad()
outputs = model(inputs)
loss = criterion(outputs, targets)  # FL606
loss.backward()
optimizer.step()
""",
        """\
import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())


def train(model, criterion, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = criterion(model(inputs).squeeze(1), labels)  # FL606
    loss.backward()
    optimizer.step()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, nn.BCEWithLogitsLoss(), optimizer, torch.randn(4, 8), torch.ones(4))
""",
        """\
import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, inputs, targets):
        probs = torch.softmax(self.model(inputs), dim=-1)
        loss = self.loss_fn(probs, targets)  # FL606
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


Trainer(nn.Linear(8, 5)).step(torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
""",
        """\
import torch
from torch import nn


class RewardLoss(nn.Module):
    def __init__(self, token_ids=None):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.token_ids = token_ids

    def forward(self, logits, labels):
        if self.token_ids is not None:
            logits = logits[..., self.token_ids]
            logits = logits.softmax(dim=-1)
        return self.loss(logits, labels)  # FL606


RewardLoss([0, 1])(torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 1, 0])).backward()
""",
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(16, 8), torch.randint(0, 5, (16,))
logits = model(inputs)
loss = F.cross_entropy(logits, targets)
loss.backward()
optimizer.step()
accuracy = (F.softmax(logits, dim=1).argmax(dim=1) == targets).float().mean()
""",
        """\
import torch
import torch.nn.functional as F

student, teacher = torch.nn.Linear(8, 5), torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
with torch.no_grad():
    soft_targets = F.softmax(teacher(inputs) / 2.0, dim=1)
F.cross_entropy(student(inputs), soft_targets).backward()
optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 5), nn.LogSoftmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
criterion(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 3])).backward()
optimizer.step()
""",
        """\
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        gate = self.gate(x)
        out = self.head(gate * x)
        if not self.training:
            return torch.softmax(out, dim=1)
        return out


model = Gated()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
criterion(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 3])).backward()
optimizer.step()
""",
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.BCELoss()
criterion(model(torch.randn(4, 8)), torch.ones(4, 1)).backward()
optimizer.step()
""",
        """\
import torch
import torch.nn.functional as F


def step(logits, labels, return_probs):
    loss = F.cross_entropy(logits, labels)
    if return_probs:
        logits = logits.softmax(dim=-1)
    return loss, logits


step(torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3]), True)[0].backward()
""",
    )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"{entry['loss']} expects logits but gets the result of {entry['given']} and squashes it a second time, so the gradient is small and training is slow. "
            "Pass the logits"
        )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call, loss in loss_calls(module, *_FUNCTIONS, *_CLASSES):
            made = _squashed(module, call)
            if made is None:
                continue
            yield self.finding(
                module.location(call),
                f"{loss} expects logits but gets the result of {made.op}{_where(module, made, call)} and squashes it a second time, so the gradient is small and training is slow. Pass the logits",
                loss=loss,
                squashed_by=made.op,
                squashed_at=f"{made.module.path}:{made.line}",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        for call, _ in loss_calls(module, *_FUNCTIONS, *_CLASSES):
            if module.location(call) != finding.at:
                continue
            made = _squashed(module, call)
            edits = _without(module, made, call) if made is not None else None
            return Fix("Give the loss the logits", edits) if edits is not None else None
        return None


def _squashed(module: Module, call: ast.Call) -> Made | None:
    """The softmax or sigmoid whose result this loss is given."""
    given = module.argument(call, 0, "input", "inputs")
    if given is None:
        return None
    made = [made_by(module, given)]
    if made == [None] and isinstance(given, ast.Name):
        # wrong in that branch is wrong, unless the branch is about who gets the probabilities
        branches = values_of(module).in_one_branch(given)
        made = [
            made_by(module, v) for i, v in branches if not _OUTPUT.search(module.segment(i.test))
        ]
    return next((m for m in made if m is not None and m.op in _PROBABILITIES), None)


def _where(module: Module, made: Made, call: ast.Call) -> str:
    if made.module is not module:
        return f" ({made.module.path}:{made.line})"
    return "" if made.line == call.lineno else f" (line {made.line})"


def _without(module: Module, made: Made, call: ast.Call) -> tuple[Edit, ...] | None:
    """Edits that let the logits through: the softmax is dropped where nothing else reads it."""
    squash, given = made.call, module.argument(call, 0, "input", "inputs")
    if made.module is not module or module.function(squash) is not module.function(call):
        return None
    logits = _inside(module, squash)
    if logits is None:
        return None
    editor = Editor(module)
    text = module.segment(logits)
    if any(up is given for up in [squash, *module.parents(squash)]):
        return (editor.replace(squash, text),)
    match module.parent(squash):
        case ast.Assign([ast.Name(name)]) as up:
            pass
        case _:
            return None
    if len(_read_before_next(module, name, up)) != 1:
        # others read the probabilities: only the loss gets the logits, where they have a name
        match logits, given:
            case ast.Name(other), ast.Name() if other != name:
                means = values_of(module).still_means(squash, call)
                return (editor.replace(given, text),) if means else None
        return None
    if is_name(logits, name) and editor.alone(up):
        return (editor.delete(up),)
    return (editor.replace(squash, text),)


def _read_before_next(module: Module, name: str, after: ast.stmt) -> list[ast.Name]:
    """Where a name is read before it is bound again."""
    scope = module.scope(after)
    later = [line for b in module.bindings(name, scope) if (line := b.lineno) > after.lineno]  # type: ignore[attr-defined]
    end = min(later, default=float("inf"))
    return [use for use in values_of(module).uses(name, scope, after) if use.lineno <= end]


def _inside(module: Module, squash: ast.Call) -> ast.expr | None:
    """The logits that the softmax or sigmoid is given."""
    if (module.resolve(squash.func) or "").startswith("torch."):
        return module.argument(squash, 0, "input")
    match squash.func:
        case ast.Attribute(value, method) if method in _PROBABILITIES:
            if of_self(squash.func) is None:
                return value
    made = output_of(module, squash.func, squash)
    single = made is not None and made.call is squash and len(squash.args) == 1
    return squash.args[0] if single else None
