"""FL129: the loss is divided by k although the framework already does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fallline.events import Backward, Trace
from fallline.finding import Finding, Severity
from fallline.flow.divisions import divided_again
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["LossDividedTwice"]

# Fabric only scales for precision; it does not divide.
_DIVIDES = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "transformers": "The Trainer",
    "deepspeed": "DeepSpeed",
    "mmengine": "mmengine's `update_params`",
}
# What people call the number of micro-batches; lengths, temperatures and ranks are divided by for other reasons.
_COUNT = re.compile(r"(?i)accum|micro|steps?\b|batches|^[kn]$")

_SETUP = """\
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(24, 8), torch.randn(24, 1)), batch_size=4)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


class LossDividedTwice(Rule):
    code = "FL129"
    name = "loss-divided-twice"
    severity = Severity.ERROR
    what = "Finds a loss divided by the number of micro-batches where Accelerate, Lightning, the Trainer or DeepSpeed divides it too."
    why = "The gradient is k times too small: an SGD run learns with a k-th of its learning rate. Adam and AdamW hide most of it."
    instead = "Leave the division to the framework:\n\n```python\nwith accelerator.accumulate(model):\n    loss = loss_fn(model(x), y)\n    accelerator.backward(loss)\n```"
    tokens = (
        b"accelerat",
        b"lightning",
        b"transformers",
        b"deepspeed",
        b"mmengine",
        b"length",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.of(Backward).first_of_each():
            framework = _DIVIDES.get(backward.normalised or "")
            if framework and _by_the_count(backward) and backward.reduction != "sum":
                count = f"{backward.window}×" if backward.window else "that many times"
                yield self.finding(
                    backward,
                    f"{framework} already divides the loss by the number of accumulation steps, and it is divided here again, so the gradient is {count} "
                    "too small. Remove the division.",
                )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """A sum that was made a mean, and is divided by the same lengths once more."""
        for division in divided_again(module):
            text = module.segment(division)
            yield self.finding(
                module.location(division),
                f"`{text}` divides by the length a second time: the value before it may already be an average. Divide once.",
                severity=Severity.WARNING,
            )

    wrong = (
        _SETUP
        + """
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y) / 2
            accelerator.backward(loss)  # FL129
            optimizer.step()
            optimizer.zero_grad()
""",
        _SETUP
        + """
ACCUMULATION_STEPS = 2


def train(accelerator, model, optimizer, loader):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            loss = loss / ACCUMULATION_STEPS
            accelerator.backward(loss)  # FL129
            optimizer.step()
            optimizer.zero_grad()


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION_STEPS)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    train(accelerator, model, optimizer, loader)
""",
    )
    right = (
        _SETUP
        + """
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        # this Accelerator does not accumulate: the loop does, and divides
        _SETUP
        + """
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / 2
        accelerator.backward(loss)
        if (i + 1) % 2 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        # whether this Accelerator accumulates is said nowhere: the loop does, and divides
        _SETUP
        + """
OPTIONS = {"cpu": True}


class Trainer:
    def __init__(self, options):
        self.accelerator = Accelerator(**options)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)

    def fit(self, every=2):
        for i, (x, y) in enumerate(self.loader):
            loss = nn.functional.mse_loss(self.model(x), y)
            self.accelerator.backward(loss / every)
            if (i + 1) % every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


Trainer(OPTIONS).fit()
""",
        # a weight, and the mean of two losses: no count of micro-batches
        _SETUP
        + """
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            out = model(x)
            loss = (nn.functional.mse_loss(out, y) + nn.functional.l1_loss(out, y)) / 2
            accelerator.backward(0.1 * loss)
            optimizer.step()
            optimizer.zero_grad()
""",
        # without a framework
        _SETUP.replace("from accelerate import Accelerator\n", "")
        + """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    )


def _by_the_count(backward: Backward) -> bool:
    """The loss was divided by the number of micro-batches, or by what is called like one; not weighted (`0.5 * loss`)."""
    if not backward.divided:
        return False
    text = backward.divided_by or ""
    if backward.divisor is not None and backward.window is not None:
        return abs(backward.divisor - backward.window) < 1e-3 * backward.window
    return _COUNT.search(text) is not None if text or backward.divisor is not None else True
