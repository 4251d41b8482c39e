"""A NaN in an update that goes like hundreds before it is named as exactly as an early one, whatever calls what."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once

BAD = 333  # long after updates are only compared
HEAD = f"""
import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout))
        self.head = nn.Linear(8, 1)

    def forward(self, x, scale=1.0):
        h = self.body(x)
        root = (h * h + scale - 1.0).sqrt()  # BORN
        return self.head(h + 0.0 * root)


def batch(number):
    return torch.ones(2, 4), 0.0 if number == {BAD} else 2.0


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

SCRIPTS = {
    "in_the_loop": """
for number in range(340):
    x, scale = batch(number)
    loss = model(x, scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "in_a_function": """
def step(number):
    x, scale = batch(number)
    loss = model(x, scale=scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for number in range(340):
    step(number)
""",
    "loss_in_a_function": """
def loss_of(x, scale):
    return model(x, scale).square().mean()


for number in range(340):
    x, scale = batch(number)
    loss = loss_of(x, scale)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "backward_in_a_function": """
def descend(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for number in range(340):
    x, scale = batch(number)
    loss = model(x, scale).square().mean()
    descend(loss)
""",
    "two_calls": """
for number in range(340):
    x, scale = batch(number)
    loss = model(x, 2.0).square().mean() + model(x, scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "dropout": """
model.body[1].p = 0.5
for number in range(340):
    x, scale = batch(number)
    loss = model(x, scale).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "two_micro_batches": """
for number in range(340):
    optimizer.zero_grad()
    for half in range(2):
        x, scale = batch(number + half)
        (model(x, scale).square().mean() / 2).backward()
    optimizer.step()
""",
    "adversaries": """
other = Model()
second = torch.optim.SGD(other.parameters(), lr=0.01)
for number in range(340):
    x, scale = batch(number)
    optimizer.zero_grad()
    model(x, 2.0).square().mean().backward()
    optimizer.step()
    second.zero_grad()
    other(x, scale).square().mean().backward()
    second.step()
""",
}
UPDATE = {"two_micro_batches": BAD - 1}  # its second half is the batch that is bad


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(tmp_path_factory, "late", {name: HEAD + body for name, body in SCRIPTS.items()})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_late_nan_is_named(runs: Path, name: str) -> None:
    found: list[dict[str, Any]] = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    births = [f for f in found if f["code"].startswith("FL62")]
    assert [f["code"] for f in births] == ["FL620"], births
    evidence = births[0]["evidence"]
    assert evidence["op"] == "sqrt"
    assert evidence["step"] == UPDATE.get(name, BAD)
    assert (
        births[0]["line"]
        == HEAD.splitlines().index("        root = (h * h + scale - 1.0).sqrt()  # BORN") + 1
    )
    assert evidence["replayed"] == "statements"
