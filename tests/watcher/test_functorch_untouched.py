"""A watched run asks functorch nothing: the first question makes state that torch copies for every node of every backward from then on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch
from torch import nn

asked = []
functorch = torch._C._functorch
for name in dir(functorch):
    function = getattr(functorch, name)
    if type(function).__name__ == "builtin_function_or_method":
        def recorded(*args, function=function, name=name, **kwargs):
            asked.append(name)
            return function(*args, **kwargs)
        setattr(functorch, name, recorded)

import fallline

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with fallline.watch(model, optimizer, out="run"):
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 2, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("asked:", sorted(set(asked)))
"""


def test_functorch_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "asked: []" in ran.stdout, ran.stdout + ran.stderr
