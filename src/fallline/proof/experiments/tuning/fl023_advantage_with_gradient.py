"""FL023: the policy's loss and the critic."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributions import Categorical

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL023",
    claim="With an advantage that has a graph, the policy's loss pushes the critic; detached, it does not reach it.",
)
def advantage_with_gradient() -> Measured:
    wrong, right = _pushed(detached=False), _pushed(detached=True)
    name = "gradient of the policy's loss on the critic, relative to that of its own loss"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"the policy's loss pushes the critic with {wrong:.2f} times the force of its own loss; detached, {right:g}",
        holds={"with a graph it is pushed": wrong > 0.01, "detached it is not": right == 0},
    )


def _pushed(*, detached: bool) -> float:
    torch.manual_seed(0)
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    states = torch.randn(256, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    advantage = (actions == (states[:, 0] > 0)).float() - critic(states)[:, 0]
    entering = advantage.detach() if detached else advantage
    losses = (-(policy.log_prob(actions) * entering).mean(), advantage.square().mean())
    lengths: list[float] = []
    for loss in losses:
        gradients = torch.autograd.grad(
            loss, list(critic.parameters()), retain_graph=True, allow_unused=True
        )
        lengths.append(math.sqrt(sum(float(g.square().sum()) for g in gradients if g is not None)))
    return lengths[0] / lengths[1]
