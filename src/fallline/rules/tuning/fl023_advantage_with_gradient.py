"""FL023: an advantage, return or reward that is not a constant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.modules import looks_like_model
from fallline.flow.networks import graph_of
from fallline.flow.recording import under_no_grad
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module


class AdvantageWithGradient(Observed):
    code = "FL023"
    name = "advantage-with-gradient"
    severity = Severity.WARNING
    what = """\
Finds an advantage, return or reward with a graph that enters the policy's loss."""
    why = """\
The policy's loss then trains the critic too: it makes advantages look better instead of estimating them, and the two learn against each other."""
    instead = """\
Detach it where it enters the policy's loss.

```python
policy_loss = -(log_prob * advantage.detach()).mean()
value_loss = advantage.pow(2).mean()
```"""

    tokens = (
        b"advantage",
        b"adv",
    )
    wrong = (
        """\
import torch
from torch import nn
from torch.distributions import Categorical

actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    advantage = rewards - critic(states)[:, 0]
    actor_loss = -(policy.log_prob(actions) * advantage).mean()  # FL023
    loss = actor_loss + advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn
from torch.distributions import Categorical

actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    advantage = rewards - critic(states)[:, 0]
    actor_loss = -(policy.log_prob(actions) * advantage.detach()).mean()
    loss = actor_loss + advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.distributions import Categorical

actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    with torch.no_grad():
        advantage = 1.0 - critic(states)[:, 0]
    loss = -(policy.log_prob(actions) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for product in module.all(ast.BinOp):
            if not isinstance(product.op, ast.Mult):
                continue
            for one, other in ((product.left, product.right), (product.right, product.left)):
                name = other.operand if isinstance(other, ast.UnaryOp) else other
                if isinstance(name, ast.Name) and _enters_with_graph(module, one, name):
                    yield self.finding(
                        module.location(module.statement(product)),
                        f"`{name.id}` is computed from the critic and enters the policy's loss with its graph, so that loss changes the critic too. "
                        f"Use `{name.id}.detach()` there",
                    )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"`{entry['variable']}` has a graph and is part of `{entry['loss']}`, so the policy's loss changes the critic too. "
            f"Use `{entry['variable']}.detach()` there"
        )


_CRITIC = re.compile(r"critic|value", re.IGNORECASE)
_LOG_PROB = re.compile(r"^(?!old|ref)(\w+_)?log_?p(rob)?s?$")
_VALUE = re.compile(r"(?i)^(state_)?v(al(ue)?s?)?(_pred)?$")
_ADVANTAGE = re.compile(r"^(adv|advantages?|td_error|delta)$", re.IGNORECASE)


def _enters_with_graph(module: Module, one: ast.expr, advantage: ast.Name) -> bool:
    """A log-probability times an advantage that a critic's graph is part of."""
    if not _ADVANTAGE.match(advantage.id):
        return False
    if _is_log_prob(module, one):
        return _has_graph(module, advantage)
    if graph_of(module, one, wanted=_gives_log_prob) is None:
        return False
    return graph_of(module, advantage, wanted=_asks_critic) is not None


def _gives_log_prob(module: Module, call: ast.Call) -> bool:
    return last_name(call) == "log_prob"


def _asks_critic(module: Module, call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            return _CRITIC.search(name) is not None and name not in module.functions
    return False


def _is_log_prob(module: Module, node: ast.expr) -> bool:
    """`dist.log_prob(actions)`, directly or by name."""
    made = module.value(node)
    match made:
        case ast.Call(ast.Attribute(attr="log_prob")):
            return True
    return isinstance(node, ast.Name) and _LOG_PROB.match(node.id) is not None


def _has_graph(module: Module, name: ast.Name) -> bool:
    """An advantage that is the difference of something and a critic's answer, made with gradients on, here or in a function of this file."""
    values = values_of(module)
    made: ast.expr | ast.arg | None = values.origin(name)
    if isinstance(made, ast.Name) and (part := values.unpacked(made)) is not None:
        made = None if under_no_grad(module, part[0]) else values.result(*part)
    elif isinstance(made, ast.Call) and not under_no_grad(module, made):
        made = values.result(made)
    if isinstance(made, ast.expr):
        made = values.origin(made)
    match made:
        case ast.BinOp(left, ast.Sub(), right) as made:
            answers = _answers(module, left) or _answers(module, right)
            return answers and not under_no_grad(module, made)
    return False


def _answers(module: Module, node: ast.expr) -> bool:
    """What a critic says, without a detach on the way."""
    here = module.value(node)
    for _ in range(_CHAINED):
        match here:
            case ast.Call() if under_no_grad(module, here):
                return False
            case ast.Name() if (part := values_of(module).unpacked(here)) is not None:
                # `distribution, value = net(observation)`
                return (
                    bool(_VALUE.match(here.id))
                    and looks_like_model(part[0].func)
                    and not under_no_grad(module, part[0])
                )
            case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(ast.Name("self"), name)):
                return bool(_CRITIC.search(name))
            case ast.Subscript(whole):
                here = module.value(whole)
            case ast.Call(ast.Attribute(whole, method)) if method not in {"detach", "item"}:
                here = whole
            case _:
                break
    return False


_CHAINED = 16  # calls and items in a row
