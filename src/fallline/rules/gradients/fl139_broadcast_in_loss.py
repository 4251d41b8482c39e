"""FL139: prediction and target of different shape broadcast in the loss, (B, 1) against (B,)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.losses import in_loss, loss_calls
from fallline.flow.shapes import Shape, shape_of
from fallline.rules._observed import Observed
from fallline.syntax import Module

__all__ = ["BroadcastInLoss"]

_LOSSES = (
    *("mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss"),
    *("huber_loss", "HuberLoss"),
)
# These raise instead of broadcasting.
_REFUSE = (
    *("binary_cross_entropy", "BCELoss"),
    *("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
)
_AVERAGES = frozenset({"mean", "sum"})


class BroadcastInLoss(Observed):
    code = "FL139"
    name = "broadcast-in-loss"
    severity = Severity.ERROR
    what = "Prediction and target of a loss have different shapes, such as (B, 1) and (B,), and broadcast to (B, B)."
    why = (
        "Every prediction is compared with the target of every sample in the batch. The loss is smallest when the model predicts the mean of the "
        "targets for all inputs, so it learns nothing about the inputs. The loss still falls at first, and for losses of torch.nn there is only a warning."
    )
    instead = (
        "Give both the same shape before they meet:\n\n"
        "```python\nloss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets)\n```"
    )
    references = ("https://docs.pytorch.org/docs/stable/notes/broadcasting.html",)
    tokens = (b"loss", b"Loss", b"mean", b"sum")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        pairs = [*_in_loss_calls(module, _REFUSE)]
        refused = {node for node, _, _ in pairs}
        for node, left, right in (
            *pairs,
            *_in_loss_calls(module, _LOSSES),
            *_in_arithmetic(module),
        ):
            first, second = shape_of(module, left), shape_of(module, right)
            if first is None or second is None or not _broadcasts(first, second):
                continue
            if isinstance(node, ast.BinOp) and (first.made_so or second.made_so):
                continue  # someone asked for all pairs
            if node in refused:
                yield self.finding(
                    module.location(node),
                    f"`{module.segment(left)}` has shape {first} and `{module.segment(right)}` has shape {second}; binary cross entropy raises a ValueError where they differ. "
                    "Give both the same shape, for example with `squeeze(1)`",
                    shapes=[str(first), str(second)],
                )
                continue
            wide = "(B, B)" if None in (first.dims[0], second.dims[0]) else "a matrix"
            if isinstance(node, ast.BinOp) and _only_averaged(module, node):
                # the mean over all pairs of a sum is the sum of the means: only the matrix is too much
                yield self.finding(
                    module.location(node),
                    f"`{module.segment(left)}` has shape {first} and `{module.segment(right)}` has shape {second}, so they broadcast to {wide}. Their mean is the "
                    "same, but it is computed over every pair. Give both the same shape, for example with `squeeze(1)`",
                    severity=Severity.INFO,
                    shapes=[str(first), str(second)],
                )
                continue
            yield self.finding(
                module.location(node),
                f"`{module.segment(left)}` has shape {first} and `{module.segment(right)}` has shape {second}, so they broadcast to {wide}: every prediction is "
                "compared with every target. Give both the same shape, for example with `squeeze(1)`",
                shapes=[str(first), str(second)],
            )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"Inside this loss a tensor of shape {entry['prediction']} meets one of shape {entry['target']}, and they broadcast to {entry['result']}: every "
            "prediction is compared with every target of the batch. Give both the same shape, for example with `squeeze(1)`"
        )

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64))
loader = torch.utils.data.DataLoader(data, batch_size=16)
for inputs, targets in loader:
    loss = nn.functional.mse_loss(model(inputs), targets)  # FL139
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(8, 8)

    def act(self, x):
        normal = torch.distributions.Normal(self.mean(x), 1.0)
        action = normal.rsample()
        log_prob = normal.log_prob(action)
        log_prob = log_prob.sum(1, keepdim=True)
        return action, log_prob


actor, critic = Actor(), Critic()
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
alpha = 0.2
for update in range(4):
    action, log_prob = actor.act(torch.randn(16, 8))
    value = critic(action).view(-1)
    actor_loss = (alpha * log_prob - value).square().mean()  # FL139
    optimizer.zero_grad()
    actor_loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16)
for inputs, targets, columns in loader:
    loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
    loss = loss + nn.functional.mse_loss(model(inputs), targets.unsqueeze(1))
    loss = loss + nn.functional.mse_loss(model(inputs), columns) + (model(inputs).view(-1) - targets).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

# All pairs are meant: each score against each other one.
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    scores = model(torch.randn(16, 8)).view(-1)
    loss = torch.relu(1 - (scores.unsqueeze(1) - scores)).mean()
    loss = loss + (scores[:, None] - scores).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )


def _in_loss_calls(
    module: Module, losses: tuple[str, ...]
) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    for call, _ in loss_calls(module, *losses):
        given = module.argument(call, 0, "input", "inputs")
        target = module.argument(call, 1, "target", "targets")
        if given is not None and target is not None:
            yield call, given, target


def _in_arithmetic(module: Module) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Differences and sums under a `.mean()` or `.sum()` that become part of a loss."""
    for node in module.all(ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.Add) and _averaged(module, node):
            if in_loss(module, node):
                yield node, node.left, node.right


def _averaged(module: Module, node: ast.expr) -> bool:
    for up in module.parents(node):
        match up:
            case ast.stmt():
                return False
            case ast.Call() if last_name(up) in _AVERAGES:
                return not up.args or module.resolve(up.func) is not None
    return False


def _only_averaged(module: Module, node: ast.expr) -> bool:
    """`(a - b + c).mean()`: nothing but sums and differences lies between the two and their mean."""
    child: ast.AST = node
    for up in module.parents(node):
        match up:
            case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.UnaryOp(op=ast.USub()):
                child = up
            case ast.Attribute(attr="mean"):
                call = module.parent(up)
                return isinstance(call, ast.Call) and not call.args and not call.keywords
            case ast.Call(func=func, args=[given]) if given is child:
                return module.resolve(func) == "torch.mean"
            case _:
                return False
    return False


def _broadcasts(left: Shape, right: Shape) -> bool:
    return (left.is_column and right.is_vector) or (left.is_vector and right.is_column)
