"""FL131: the gradient of a loss reaches what is meant to be a constant in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import names_in, same
from fallline.flow.losses import differentiated, in_loss, loss_calls
from fallline.flow.makers import made_by
from fallline.flow.networks import graph_of, returned_by
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["TargetNotDetached"]

_LOSSES = (
    *("mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss", "huber_loss"),
    *("HuberLoss", "cross_entropy", "CrossEntropyLoss", "kl_div", "KLDivLoss"),
    *("binary_cross_entropy", "BCELoss", "binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
)
_OF_CLASSES = (
    "cross_entropy",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_REWARD = re.compile(r"reward|(^|_)(r|rew|rews|costs?)(_|$)", re.IGNORECASE)
_SAYS_TARGET = re.compile(
    r"pseudo|(^|_)(targets?|labels?)(_|$|\d)|(^|_)tgt(_|$)|td_target|expected_"
)
_FIXED_NETWORK = re.compile(
    r"target|tgt|teacher|ema|frozen|fixed|_old|old_|(^|_)ref(_|$)|prime|momentum|lagged|avg",
    re.IGNORECASE,
)
_FOLLOWED = 3  # functions in a row


_GIVEN = re.compile(r"(?i)^(x_|y_)?(target|real|gt|hr|label|true|ground_?truth|clean|y)s?(_|$)")


class TargetNotDetached(Observed):
    code = "FL131"
    name = "target-not-detached"
    severity = Severity.ERROR
    what = "The target of a loss is computed by the model that is trained, and its gradient is not cut off."
    why = """\
The loss then moves the target towards the prediction as well as the prediction towards the target.

In temporal-difference learning that minimises a different error: where the next state is random, the values it converges to are wrong. With a model's
own predictions as targets (pseudo-labels), it agrees with itself instead of learning, and may collapse to one answer for everything."""
    instead = (
        "Compute the target without a graph:\n\n"
        "```python\nwith torch.no_grad():\n    target = reward + gamma * target_net(next_state).max(1).values\n```"
    )
    tokens = (b"gamma", b"discount", b"pseudo", b"target", b"label")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        seen: set[int] = set()
        compared = [(n, t, p) for n, p, t in _compared(module)]
        for node, target, prediction in [
            *compared,
            *((*c, None) for c in _called_like_a_loss(module)),
        ]:
            if id(node) in seen:
                continue
            found = _bootstrapped(module, target)
            if found is None and prediction is not None:
                found = _own_prediction(module, prediction, target)
            presumed = found is None
            if found is None and prediction is not None:
                found = _other_network(module, prediction, target)
            if found is None:
                continue
            seen.add(id(node))
            call, why = found
            fixed = _FIXED_NETWORK.search(module.segment(call.func)) is not None
            harm = (
                "the backward runs through it as well, and trains it if an optimizer holds it"
                if fixed
                else f"this loss also moves {why}"
            )
            yield self.finding(
                module.location(node),
                f"The target `{module.segment(target)[:60]}` still has the graph of `{module.segment(call.func)}`, so {harm}. "
                "Compute it under torch.no_grad(), or use detach()",
                # gradients of a network that nobody steps only cost memory and time
                severity=Severity.INFO if fixed or presumed else None,
                network=module.segment(call.func),
            )

    def counts(self, entry: dict[str, Any]) -> bool:
        """Two predictions may be moved towards each other on purpose: then nothing is called a target."""
        if entry["kind"] == "prediction" and entry["loss"] in _OF_CLASSES:
            return True
        if "target" not in entry:
            return True
        called = entry["target"]
        fixed = entry["kind"] == "network" and _FIXED_NETWORK.search(called)
        return bool(_SAYS_TARGET.search(called) or fixed) and not _GIVEN.search(called)

    def says(self, entry: dict[str, Any]) -> str:
        named = f"`{entry['target']}`, the target of this loss," if entry.get("target") else ""
        match entry["kind"]:
            case "prediction":
                said = f"{named or 'The target of this loss'} is a prediction of the model that is trained and has its graph, so the loss also moves it towards the other prediction"
            case "network":
                said = f"{named or 'The target of this loss'} has the graph of a network that an optimizer trains, so the loss also moves that network towards the prediction"
            case "target network":
                said = "The target of this loss, a reward plus a discounted value, has the graph of a target network that an optimizer trains, so the loss also moves the target"
            case _:
                said = "The target of this loss, a reward plus a discounted value, has a gradient into the same parameters as the prediction, so the loss also moves the target towards the prediction"
        return f"{said}. Compute the target under torch.no_grad()"

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        """By what it is called alone."""
        by_name = "target" in entry and entry["loss"] not in _OF_CLASSES
        return Severity.WARNING if by_name or entry["kind"] == "network" else None

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
q_net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(q_net.parameters(), lr=0.01)
gamma = 0.99
for update in range(4):
    state, next_state = torch.randn(16, 4), torch.randn(16, 4)
    reward, done = torch.randn(16), torch.zeros(16)
    q = q_net(state).max(1)[0]
    target = reward + gamma * q_net(next_state).max(1)[0] * (1 - done)
    loss = nn.functional.mse_loss(q, target)  # FL131
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.nn import functional as F


class Agent:
    def __init__(self):
        self.q_net = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.q_net.parameters())
        self.gamma = 0.9

    def compute_target(self, rewards, next_states, dones):
        best = self.q_net(next_states).max(1)[0]
        return rewards + self.gamma * best * (1 - dones)

    def learn(self, states, actions, rewards, next_states, dones):
        expected = self.compute_target(rewards, next_states, dones)
        q = self.q_net(states).gather(1, actions).squeeze(1)
        loss = F.smooth_l1_loss(q, expected)  # FL131
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    weak, strong = torch.randn(16, 8), torch.randn(16, 8)
    pseudo_labels = torch.softmax(model(weak), dim=1)
    loss = nn.functional.cross_entropy(model(strong), pseudo_labels)  # FL131
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import copy

import torch
from torch import nn

torch.manual_seed(0)
q_net = nn.Linear(4, 2)
target_net = copy.deepcopy(q_net).requires_grad_(False)
optimizer = torch.optim.SGD(q_net.parameters(), lr=0.01)
gamma = 0.99
for update in range(4):
    state, next_state = torch.randn(16, 4), torch.randn(16, 4)
    reward = torch.randn(16)
    q = q_net(state).max(1)[0]
    with torch.no_grad():
        target = reward + gamma * q_net(next_state).max(1)[0]
    other = (reward + gamma * q_net(next_state).max(1)[0]).detach()
    third = reward + gamma * q_net(next_state).detach().max(1)[0]
    loss = nn.functional.mse_loss(q, target) + nn.functional.mse_loss(q, other) + (q - third).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    weak, strong = torch.randn(16, 8), torch.randn(16, 8)
    pseudo_labels = model(weak).argmax(dim=1)
    first, second = model(weak), model(strong)
    # two views of one image, each moved towards the other, on purpose
    loss = nn.functional.cross_entropy(model(strong), pseudo_labels) + nn.functional.mse_loss(first, second)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )


def _compared(module: Module) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """What a loss compares: place, prediction, target; each side may be the target."""
    for call, _ in loss_calls(module, *_LOSSES):
        first = module.argument(call, 0, "input", "inputs")
        second = module.argument(call, 1, "target", "targets")
        if first is not None and second is not None and differentiated(module, call):
            yield call, first, second
            yield call, second, first
    for node in module.all(ast.BinOp):
        if isinstance(node.op, ast.Mult):
            # a cross entropy by hand: `-(targets * log_softmax(logits)).sum(1)`
            for log, other in ((node.left, node.right), (node.right, node.left)):
                made = made_by(module, log) if log.__class__ is not ast.Constant else None
                if made is not None and made.op == "log_softmax" and in_loss(module, node):
                    yield node, made.of or log, other
        if isinstance(node.op, ast.Sub) and _squared(module, node) and in_loss(module, node):
            yield node, node.left, node.right
            yield node, node.right, node.left


# Something of someone else's that is called like a loss: of a prediction and a target.
_CALLED_LOSS = re.compile(r"(^|_)(loss_?(f|fn|func|function|fct)|criterion)$", re.IGNORECASE)


def _called_like_a_loss(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`self.net.loss_fn(q, target)`, whose making is not in view: place and target."""
    for call in module.calls_named(_CALLED_LOSS):
        if len(call.args) == 2 and differentiated(module, call):
            yield from ((call, target) for target in call.args)


def _squared(module: Module, node: ast.expr) -> bool:
    up = module.parent(node)
    match up:
        case ast.Attribute(attr="pow" | "square" | "abs"):
            return True
        case ast.BinOp(left, ast.Pow(), _):
            return left is node
    return False


def _bootstrapped(module: Module, target: ast.expr, depth: int = 0) -> tuple[ast.Call, str] | None:
    """`reward + gamma * network(next_state)`, with the network's graph."""
    origin = values_of(module).origin(target)
    if isinstance(origin, ast.Call) and depth < _FOLLOWED:
        home, value = returned_by(module, origin) or (module, None)
        return _bootstrapped(home, value, depth + 1) if value is not None else None
    if not isinstance(origin, ast.BinOp) or not isinstance(origin.op, ast.Add):
        return None
    if not differentiated(module, origin):
        return None
    sides = ((origin.left, origin.right), (origin.right, origin.left))
    for reward, rest in sides:
        if _REWARD.search(_words(reward)) and _DISCOUNT.search(_words(rest)):
            call = graph_of(module, rest)
            if call is not None:
                return call, "the target towards the prediction"
    return None


def _own_prediction(
    module: Module, prediction: ast.expr, target: ast.expr
) -> tuple[ast.Call, str] | None:
    """A target by name that the same model computed as the prediction."""
    if not isinstance(target, ast.Name) or not _SAYS_TARGET.search(target.id):
        return None
    call, own = graph_of(module, target), graph_of(module, prediction)
    if call is None or own is None or not same(call.func, own.func):
        return None
    if any(isinstance(a, ast.Name) and _GIVEN.search(a.id) for a in call.args):
        return None  # the features of the true image: `vgg(predict)` and `vgg(target)`
    return call, "the model's own targets towards its predictions"


def _other_network(
    module: Module, prediction: ast.expr, target: ast.expr
) -> tuple[ast.Call, str] | None:
    """A target by name that a network computed, not the one of the prediction: `v_target = qf(obs, action)`. Some are meant so."""
    if not isinstance(target, ast.Name) or not _SAYS_TARGET.search(target.id):
        return None
    call = graph_of(module, target)
    if call is None or graph_of(module, prediction) is None:
        return None
    if any(_GIVEN.search(name) for a in call.args for name in names_in(a)):
        return None
    return call, "the network of the target"


def _words(node: ast.expr) -> str:
    """The names in an expression, in one string with borders between them."""
    attributes = (n.attr for n in below(node, ast.Attribute))
    keys = (
        str(n.slice.value) for n in below(node, ast.Subscript) if isinstance(n.slice, ast.Constant)
    )
    return " _".join(["", *sorted(names_in(node)), *attributes, *keys])
