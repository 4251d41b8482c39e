"""FL022: the policy's loss does not reach the policy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import chained_on, last_name, names_in
from fallline.flow.rollouts import collected_without_graph
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below


class PolicyWithoutGradient(Observed):
    code = "FL022"
    name = "policy-without-gradient"
    severity = Severity.ERROR
    yields_to = ("FL019",)
    what = """\
Finds a policy loss that does not depend on the policy's parameters: its log-probabilities were detached, or computed without gradients."""
    why = """\
The policy never changes. The value loss still falls and rewards vary by chance, so the run looks alive."""
    instead = """\
Compute the new log-probabilities with a graph, and detach only the old ones.

```python
new = policy(ids).logits.log_softmax(-1).gather(-1, actions)
ratio = (new - old.detach()).exp()
```"""

    tokens = (b"log_prob", b"logp")
    wrong = (
        """\
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    values = critic(states)[:, 0]
    advantages = (rewards - values).detach()
    log_probs = policy.log_prob(actions).detach()
    policy_loss = -(log_probs * advantages).mean()  # FL022
    loss = policy_loss + (rewards - values).pow(2).mean()
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

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(8):
    states = torch.randn(16, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    rewards = (actions == (states[:, 0] > 0)).float()
    values = critic(states)[:, 0]
    advantages = (rewards - values).detach()
    policy_loss = -(policy.log_prob(actions) * advantages).mean()
    loss = policy_loss + (rewards - values).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for product in module.all(ast.BinOp):
            if not isinstance(product.op, ast.Mult):
                continue
            sides = ((product.left, product.right), (product.right, product.left))
            if any(_constant(module, a) and _advantage(b) for a, b in sides):
                yield self.finding(
                    module.location(module.statement(product)),
                    "The log-probabilities are detached where they meet the advantage, so the policy gets no gradient from this loss and never changes. "
                    "Detach the advantage, not the log-probabilities",
                )
            elif any(_collected(module, a) and _weight(b) for a, b in sides):
                yield self.finding(
                    module.location(module.statement(product)),
                    "These log-probabilities were computed under no_grad when the batch was collected, so the policy gets no gradient from this loss and never changes. "
                    "Compute them again here, from the states and the actions",
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"The loss does not depend on the policy ({entry['model']}): none of its parameters got a gradient. "
            "Compute its log-probabilities with gradients on, and do not detach them"
        )


_ADVANTAGE = re.compile(r"^(adv\w*|returns?|rewards?|gae|td_errors?|deltas?)$", re.IGNORECASE)


def _constant(module: Module, node: ast.expr) -> bool:
    """`dist.log_prob(actions).detach()`, directly or by name."""
    made = module.value(node)
    match made:
        case ast.Call(func=ast.Attribute(value=inner, attr="detach" | "item")):
            source = module.value(inner)
            return isinstance(source, ast.Call) and last_name(source) == "log_prob"
    return False


_LOG_PROBABILITY = re.compile(r"^(\w+_)?log_?p(rob)?s?$", re.IGNORECASE)
_WEIGHT = re.compile(r"(^|_)(adv\w*|returns?|rets?|rewards?|gae)($|_)", re.IGNORECASE)


def _collected(module: Module, node: ast.expr) -> bool:
    """`logprobs`, handed to a loss by those who collected it with the batch. Not the old ones, which have no gradient on purpose."""
    attributes = (n.attr for n in below(node, ast.Attribute))
    words = (*names_in(node), *attributes)
    named = next((n for n in words if _LOG_PROBABILITY.match(n)), None)
    if named is None or named.startswith(("old", "ref")):
        return False
    return collected_without_graph(module, node)


def _weight(node: ast.expr) -> bool:
    """`-norm_adv`, `returns`."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
        inner = inner.left  # `returns - values.detach()`
    return isinstance(inner, ast.Name) and _WEIGHT.search(inner.id) is not None


def _advantage(node: ast.expr) -> bool:
    inner = chained_on(node)
    return isinstance(inner, ast.Name) and _ADVANTAGE.match(inner.id) is not None
