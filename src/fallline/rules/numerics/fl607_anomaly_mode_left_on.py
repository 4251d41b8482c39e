"""FL607: anomaly detection in the training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Anomaly, Step, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_SETTERS = frozenset(
    {"torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly"}
)
_CONTEXTS = frozenset(
    {"torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly"}
)
# A switch of the program by one of these names says that someone asked for it in this run.
_ASKED_FOR = ("debug", "anomaly", "nan", "finite", "profile")


class AnomalyModeLeftOn(Rule):
    code = "FL607"
    name = "anomaly-mode-left-on"
    severity = Severity.WARNING
    what = "Finds training under torch.autograd.detect_anomaly or after set_detect_anomaly(True)."
    why = """\
Every forward operation records a Python stack trace and every backward operation checks its result for NaN: a small network trains several times slower.

It was switched on to find one NaN. It finds NaN only in the backward pass, does not notice infinities, and stops the run where a step could be skipped."""
    instead = """\
Switch it on for one failing batch, and off again.

- behind a switch: `torch.autograd.set_detect_anomaly(args.debug)`
- `fallline run train.py` watches at about 1 % of the step time and names the operation, module and line of the first non-finite value, forward or backward"""
    fix_safety = "Safe: anomaly mode changes no result."
    facts = ("finite-loss-nan-gradient",)
    wrong = (
        """\
import torch

torch.autograd.set_detect_anomaly(True)  # FL607
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for inputs, targets in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for inputs, targets in data:
    with torch.autograd.detect_anomaly():  # FL607
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn


def train(model, data, optimizer):
    with torch.autograd.set_detect_anomaly(True):  # FL607
        for inputs, targets in data:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()


model = nn.Linear(4, 1)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
train(model, data, torch.optim.SGD(model.parameters(), lr=0.01))
""",
    )
    right = (
        """\
import torch

torch.autograd.set_detect_anomaly(False)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for inputs, targets in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
        """\
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
args = parser.parse_args([])
if args.debug:
    torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for inputs, targets in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
        """\
import torch


def find_nan(model, inputs, targets):
    with torch.autograd.detect_anomaly():
        torch.nn.functional.mse_loss(model(inputs), targets).backward()


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
for inputs, targets in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    if not torch.isfinite(loss):
        find_nan(model, inputs, targets)
        raise SystemExit("the loss is not finite")
    loss.backward()
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
assert not torch.is_anomaly_enabled()
for inputs, targets in data:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(word in setting.lower() for setting in trace.settings for word in _ASKED_FOR):
            return
        anomaly = trace.of(Anomaly).first
        if anomaly is not None and trace.after(anomaly).of(Step):  # not a search for one NaN
            yield self.finding(
                anomaly,
                "Anomaly detection stays on while training, so every operation is recorded and checked in every step, which makes training slow. "
                "Turn it off once the NaN is found.",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        editor = Editor(module)
        for call in module.all(ast.Call):
            if call.lineno != finding.at.line:
                continue
            name, up = module.resolve(call.func), module.parent(call)
            if name in _CONTEXTS and isinstance(call.func, ast.Attribute):
                written = module.segment(call.func.value)
                text = f"{written}.set_detect_anomaly(False)"
                return Fix("Switch anomaly detection off", (editor.replace(call, text),))
            if name in _SETTERS and isinstance(up, ast.Expr) and editor.alone(up):
                return Fix("Remove it", (editor.delete(up),))
            if name in _SETTERS and len(call.args) == 1 and isinstance(up, ast.withitem):
                return Fix("Switch anomaly detection off", (editor.replace(call.args[0], "False"),))
        return None
