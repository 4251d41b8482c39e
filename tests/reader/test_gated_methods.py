"""Methods that somebody else calls again and again, and that train only now and then: an agent that counts its steps, or waits for a flag."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

AGENT = """\
import torch
from torch import nn

EVERY = 4


class Memory:
    def __init__(self):
        self.done = False
        self.items = []

    def remember(self, item, done):
        self.items.append(item)
        self.done = done


class Agent:
    def __init__(self, n, config):
        self.policy = nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, 2))
        self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.memory = Memory()
        self.steps = 0
        self.every = config["every"]
        self.warm = False

    def start(self):
        self.warm = True

    def learn(self, batches):
        # GATE
        for x, gains in batches:
            loss = -(self.policy(x) * gains).sum()
            # CLEAR
            loss.backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize(
    "gate",
    [
        "self.steps += 1\nif self.steps % self.every != 0: return",
        "self.steps += 1\nif self.steps % EVERY: return",
        "self.steps = (self.steps + 1) % 3\nif self.steps != 0: return",
        "if not self.memory.done: return",
        "if not self.warm: return",
    ],
)
def test_a_method_that_trains_now_and_then(gate: str) -> None:
    gated = AGENT.replace("# GATE", gate.replace("\n", "\n        "))
    assert [f.code for f in read_text(gated) if f.severity == "error"] == ["FL106"]
    right = gated.replace("# CLEAR", "self.optimizer.zero_grad()")
    assert [f.code for f in read_text(right) if f.severity != "info"] == []


def test_a_flag_that_the_method_sets_itself_is_off_at_first() -> None:
    made = AGENT.replace("# CLEAR", "self.optimizer.zero_grad()").replace(
        "# GATE",
        "if not self.warm:\n            self.start()\n            self.optimizer = torch.optim.SGD(self.policy.parameters(), 0.1)",
    )
    assert [f.code for f in read_text(made) if f.severity != "info"] == []


TARGETS = """\
import torch
from torch import nn


class Agent:
    def __init__(self, n):
        self.net = nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.kept = list()

    def learn(self):
        episodes = self.memory.sample()
        targets = list()
        for states, rewards in episodes:
            targets.append(rewards + 0.9 * self.net(states))
        targets = torch.concat(targets, axis=0).detach()
        for _ in range(self.repeats):
            loss = (self.net(episodes) - targets).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
"""


def test_a_list_that_each_call_makes_anew_does_not_grow() -> None:
    assert [f.code for f in read_text(TARGETS) if f.severity != "info"] == []
    grows = TARGETS.replace("targets.append(", "self.kept.append(").replace(
        "torch.concat(targets", "torch.concat(self.kept"
    )
    assert [f.code for f in read_text(grows) if f.severity == "error"] == ["FL401"]
