"""What keeps a graph, and what only looks as if nobody used it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once

SCRIPTS = {
    "running_average": """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
average = 0.0
for x in torch.randn(12, 8, 4):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    average = 0.9 * average + 0.1 * loss  # FL401
print(float(average))
""",
    # the loop only calls the function that keeps them; its own list is gone when it returns
    "in_a_function": """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = {"losses": []}


def update(x):
    parts = []
    for row in x:
        parts.append(model(row).pow(2).mean())
    optimizer.zero_grad()
    loss = torch.stack(parts).mean()
    history["losses"].append(loss)  # FL401
    loss.backward()
    optimizer.step()


for x in torch.randn(12, 2, 4):
    update(x)
""",
    # three optimizers: the losses of one iteration are still in their variables when the last one steps
    "in_turns": """
import torch
from torch import nn

torch.manual_seed(0)


class Agent:
    def __init__(self):
        self.nets = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 4)
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in self.nets]

    def act(self, state):
        with torch.no_grad():
            return self.nets[2](state).numpy()

    def learn(self, states):
        first, second, actor = self.nets
        for i in range(24):
            loss_first = first(states).pow(2).mean()
            self.optimizers[0].zero_grad()
            loss_first.backward()
            self.optimizers[0].step()
            loss_second = second(states).pow(2).mean()
            self.optimizers[1].zero_grad()
            loss_second.backward()
            self.optimizers[1].step()
            if i % 2 == 0:
                loss_actor = -first(actor(states)).mean()
                self.optimizers[2].zero_grad()
                loss_actor.backward()
                self.optimizers[2].step()


agent, score = Agent(), 0.0
for states in torch.randn(3, 8, 4):
    action = agent.act(states)
    reward = action.mean()
    score += reward
    agent.learn(states)
""",
    # an evaluation that calls its layers one by one: the last batch's outputs are still in a variable
    "layer_by_layer": """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))

    def loss(self, x):
        value = self.encoder.forward(x).pow(2).mean()
        return value, {"loss": value.item()}


class Mean:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)


def evaluate(model, loader, meters):
    for x in loader:
        _, output = model.loss(x)
        for field, meter in meters.items():
            meter.add(output[field])


torch.manual_seed(0)
model, meters = Net(), {"loss": Mean()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=8)
for epoch in range(3):
    for x in loader:
        optimizer.zero_grad()
        loss, _ = model.loss(x)
        loss.backward()
        optimizer.step()
    evaluate(model, loader, meters)
""",
    # gradients of what a hook has kept; the output of the model is used by nobody
    "attack": (Path(__file__).parent.parent / "scripts" / "attack_through_hooks.py").read_text(),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(tmp_path_factory, "kept", SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_graphs_that_are_kept_are_told_and_those_that_are_used_are_not(
    runs: Path, name: str
) -> None:
    path = runs / f"{name}.run" / "findings.json"
    found = json.loads(path.read_text()) if path.exists() else []
    lines = SCRIPTS[name].split("\n")
    wanted = {("FL401", n) for n, line in enumerate(lines, 1) if line.endswith("# FL401")}
    assert {(f["code"], f["line"]) for f in found} == wanted, (runs / f"{name}.watched").read_text()
    assert "fallline: the watcher failed" not in (runs / f"{name}.watched").read_text()
