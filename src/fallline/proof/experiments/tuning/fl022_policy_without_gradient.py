"""FL022: log-probabilities without a graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

from fallline.proof.experiment import Measured, experiment

UPDATES = 200
EVERY = 2  # of the rewards, in the plot


@experiment(
    "FL022",
    claim="With detached log-probabilities the policy never changes and its reward stays at chance, while the critic's loss falls.",
)
def policy_without_gradient() -> Measured:
    wrong, right = _rewards(detached=True), _rewards(detached=False)
    ends = {name: sum(x[-20:]) / 20 for name, x in (("wrong", wrong), ("right", right))}
    return Measured(
        sides={name: {"reward at the end": value} for name, value in ends.items()},
        conclusion=f"after {UPDATES} updates the reward is {ends['wrong']:.2f} with detached log-probabilities and {ends['right']:.2f} with a graph",
        holds={
            "detached, it stays at chance": abs(ends["wrong"] - 0.5) < 0.1,
            "with a graph it learns": ends["right"] > 0.8,
        },
        curves={"wrong": wrong[::EVERY], "right": right[::EVERY]},
        positions=range(0, UPDATES, EVERY),
        axes=("update", "reward"),
    )


def _rewards(*, detached: bool) -> list[float]:
    torch.manual_seed(0)
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    nn.init.zeros_(actor.weight)
    nn.init.zeros_(actor.bias)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-2)
    found = []
    for _ in range(UPDATES):
        states = torch.randn(64, 4)
        policy = Categorical(logits=actor(states))
        actions = policy.sample()
        reward = (actions == (states[:, 0] > 0)).float()
        value = critic(states)[:, 0]
        log_prob = policy.log_prob(actions)
        log_prob = log_prob.detach() if detached else log_prob
        loss = -(log_prob * (reward - value).detach()).mean() + (reward - value).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(reward.mean()))
    return found
