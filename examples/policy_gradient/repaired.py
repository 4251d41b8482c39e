"""REINFORCE on a pole that has to be balanced; the physics is a few lines below. Repaired.

    python examples/policy_gradient/repaired.py
"""

import argparse
import math
import random

import torch
from torch import nn

LONGEST = 200


class CartPole:
    """The classic task: push a cart left or right so that its pole does not fall."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def reset(self) -> list[float]:
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        self.steps = 0
        return self.state

    def step(self, action: int) -> tuple[list[float], float, bool]:
        x, dx, angle, spin = self.state
        push = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        inner = (push + 0.05 * spin**2 * sin) / 1.1
        pull = (9.8 * sin - cos * inner) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        drive = inner - 0.05 * pull * cos / 1.1
        self.state = [x + 0.02 * dx, dx + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * pull]
        self.steps += 1
        fallen = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21
        return self.state, 1.0, fallen or self.steps >= LONGEST


def discounted(rewards: list[float], gamma: float = 0.99) -> torch.Tensor:
    """What each action led to."""
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return torch.tensor(returns[::-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    env = CartPole(seed=0)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    lengths = []

    for episode in range(args.episodes):
        state, done = env.reset(), False
        log_probs, rewards = [], []
        while not done:
            logits = policy(torch.tensor(state))
            choice = torch.distributions.Categorical(logits=logits)
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            state, reward, done = env.step(action.item())
            rewards.append(reward)

        returns = discounted(rewards)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(log_probs) * advantages).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        lengths.append(len(rewards))
        if episode % 25 == 24 or episode == args.episodes - 1:
            recent = lengths[-25:]
            print(f"episode {episode}: balanced for {sum(recent) / len(recent):.1f} steps")


if __name__ == "__main__":
    main()
