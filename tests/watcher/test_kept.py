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
