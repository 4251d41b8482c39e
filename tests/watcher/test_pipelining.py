"""A pipeline of two ranks: the schedule divides the gradients of its micro-batches, in a file of torch's."""

from __future__ import annotations

import json
from pathlib import Path

from gloo import run_workers

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def train(divides):
    torch.manual_seed(0)
    module = [nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 3)][rank]
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
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


for how in sys.argv[1:]:
    train(how == "divided")
dist.destroy_process_group()
"""


def losses_of(folder: Path, *arguments: str, watched: bool = False) -> list[str]:
    """What the script prints."""
    (folder / "pipe.py").write_text(SCRIPT)
    before = ("-m", "fallline", "run", "--out", "run") if watched else ()
    said = run_workers(*before, "pipe.py", *arguments, world=2, cwd=folder)
    return [line for line in said.splitlines() if line.startswith("loss")]


def test_a_schedule_that_divides_and_one_that_does_not(tmp_path: Path) -> None:
    bare = losses_of(tmp_path, "divided", "undivided")
    assert len(bare) == 24
    for how, expected, codes in (
        ("divided", bare[:12], []),
        ("undivided", bare[12:], ["FL104"]),
    ):
        folder = tmp_path / how
        folder.mkdir()
        assert losses_of(folder, how, watched=True) == expected
        found = json.loads((folder / "run" / "findings.json").read_text())
        assert [f["code"] for f in found if f["severity"] != "info"] == codes
