"""FL803 forward-called: model.forward(x) goes past hooks and wrappers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.modules import is_module, looks_like_model
from fallline.rule import Rule
from fallline.syntax import Editor, Module


class ForwardCalled(Rule):
    code = "FL803"
    name = "forward-called"
    severity = Severity.INFO
    what = "A module's `forward` is called directly instead of the module itself."
    why = (
        "`model(x)` runs forward and pre-forward hooks; `model.forward(x)` does not. Pruning, spectral_norm and the older weight_norm, "
        "FSDP2's parameter gathering, quantisation observers and activation loggers all live in those hooks, and none of it runs."
    )
    instead = "Call the module: `model(x)`."
    fix_safety = "Removes `.forward`; what runs in addition are the hooks that were meant to run."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",)
    tokens = (b".forward(",)

    wrong = (
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
x = torch.randn(2, 4)
y = model.forward(x)  # FL803
""",
        """\
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.encoder.forward(x))  # FL803
""",
        """\
import torch


def train_step(model, batch, target):
    output = model.forward(batch)  # FL803
    return torch.nn.functional.mse_loss(output, target)
""",
    )
    right = (
        """\
from torch import nn


class Base(nn.Module):
    def forward(self, x):
        return x


class Net(Base):
    def forward(self, x):
        return super().forward(x) + Base.forward(self, x)

    def predict(self, x):
        return self.forward(x)
""",
        """\
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


def f(x):
    return Square.forward(None, x)
""",
        """\
import torch
import numpy as np


class Dense:
    def __init__(self, n):
        self.w = np.zeros((n, n))

    def forward(self, x):
        return x @ self.w


layer = Dense(3)
print(layer.forward(np.ones(3)), torch.ones(1))
""",
        """\
import torch
from torch import nn

model = nn.Linear(2, 2)
original = model.forward
model.forward = lambda x: original(x) * 2
print(model(torch.ones(1, 2)))
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if not any(name.split(".")[0] == "torch" for name in module.imports.values()):
            return
        for call in module.method_calls("forward"):
            assert isinstance(call.func, ast.Attribute)
            receiver = call.func.value
            known = is_module(module, receiver)
            if known or (
                looks_like_model(receiver)
                and (call.args or call.keywords)  # cv2.dnn networks are run by net.forward()
                and self._could_be_module(module, receiver)
            ):
                name = module.segment(receiver)
                yield self.finding(
                    module.location(call),
                    f"`{name}.forward(...)` skips the hooks of {name}, so pruning, weight norm or FSDP does nothing there. Call `{name}(...)`.",
                )

    def _could_be_module(self, module: Module, receiver: ast.expr) -> bool:
        """Named like a model, and nothing seen says that it is something else."""
        if isinstance(receiver, ast.Name):
            made = module.value(receiver)
            return not isinstance(made, ast.Call) or not _own_class(module, made)
        cls = module.class_(receiver)
        values = (
            module.attribute_values(cls, receiver.attr)
            if cls is not None and isinstance(receiver, ast.Attribute)
            else []
        )
        return not any(isinstance(v, ast.Call) and _own_class(module, v) for v in values)

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        if call is None or not isinstance(call.func, ast.Attribute) or call.func.attr != "forward":
            return None
        return Fix(
            "Call the module itself",
            (Editor(module).replace(call.func, module.segment(call.func.value)),),
        )


def _own_class(module: Module, call: ast.Call) -> bool:
    """Made by a class of this file that is not an nn.Module: a network written by hand."""
    return (
        isinstance(call.func, ast.Name)
        and call.func.id in module.classes
        and not module.is_module_class(module.classes[call.func.id])
    )
