"""A pipeline of two ranks: the schedule divides the gradients of its micro-batches, in a file of torch's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gloo import run_ranks

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
module = [nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3)][rank]
stage = PipelineStage(module, rank, world, torch.device("cpu"))
divides = "undivided" not in sys.argv
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.CrossEntropyLoss(), scale_grads=divides)
optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
for update in range(12):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    else:
        losses = []
        schedule.step(target=(x[:, 0] > 0).long(), losses=losses)
        print("loss", float(torch.stack(losses).mean()))
    optimizer.step()
dist.destroy_process_group()
"""


def run(folder: Path, *arguments: str, watched: bool) -> tuple[list[str], list[str]]:
    """What the script prints, and the codes that were found."""
    (folder / "pipe.py").write_text(SCRIPT)
    out = folder / "run"
    before = ["-m", "fallline", "run", "--out", str(out)] if watched else []
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = run_ranks([*launch, *before, "pipe.py", *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [line for line in done.stdout.splitlines() if line.startswith("loss")]
    found = json.loads((out / "findings.json").read_text()) if watched else []
    return losses, [f["code"] for f in found if f["severity"] != "info"]


@pytest.mark.parametrize(("arguments", "codes"), [((), []), (("undivided",), ["FL104"])])
def test_a_schedule_that_divides(
    tmp_path: Path, arguments: tuple[str, ...], codes: list[str]
) -> None:
    bare, _ = run(tmp_path, *arguments, watched=False)
    losses, found = run(tmp_path, *arguments, watched=True)
    assert losses == bare and len(losses) == 12
    assert found == codes
