"""The engine is what findings tell people to use: neither the reader nor the watcher may find anything in code that uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fallline.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("engine_*.py"))

LOOP = """
import torch
from torch import nn
import fallline

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.{optimizer}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
x = torch.randn(104, 16)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4]), batch_size=8, shuffle=True)
stepper = fallline.Stepper(model, optimizer, accumulate=4, clip_norm=1.0, precision="{precision}", scheduler=scheduler)
for epoch in range(3):
    for inputs, targets in stepper.over(loader):
        with stepper.micro_batch() as micro:
            loss = nn.functional.mse_loss(model(inputs).float(), targets)
            micro.backward(loss)
assert stepper.updates == 12
"""
LOOPS = {
    "fp16": LOOP.format(optimizer="SGD(model.parameters(), lr=0.05)", precision="fp16"),
    "fused": LOOP.format(
        optimizer="AdamW(model.parameters(), lr=0.01, fused=True)", precision="fp32"
    ),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_reader_finds_nothing_in_the_examples(path, capsys):
    assert main(["check", str(path)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", LOOPS)
def test_the_reader_finds_nothing_in_a_loop(name, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(LOOPS[name])
    assert main(["check", str(script)]) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOOPS, "engine_distributed"])
def test_the_watcher_finds_nothing(name, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        LOOPS[name] if name in LOOPS else (ROOT / "examples" / f"{name}.py").read_text()
    )
    command = [sys.executable, "-m", "fallline", "run", "--out", str(tmp_path / "run"), str(script)]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads((tmp_path / "run" / "findings.json").read_text()) == []


LATE = """
import torch
import fallline

torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    fallline.clip_grad_norm_(model.parameters(), 1.0)
"""


@pytest.mark.slow
def test_the_drop_in_is_a_clip_to_both(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(LATE)
    assert main(["check", str(script), "--output-format", "json"]) == 1
    read = json.loads(capsys.readouterr().out)
    command = [sys.executable, "-m", "fallline", "run", "--out", str(tmp_path / "run"), str(script)]
    subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=120, check=False)
    watched = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert (
        [(f["code"], f["line"]) for f in read]
        == [(f["code"], f["line"]) for f in watched]
        == [("FL101", 12)]
    )
