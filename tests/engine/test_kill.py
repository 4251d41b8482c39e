"""Killed in the middle of saves that run in the background, on two ranks: nothing acknowledged is lost, nothing torn is visible.

The ranks are forked from one process that has imported torch, so that a kill costs a fraction of a second.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

KILLER = r'''
import os, random, signal, sys, time
from pathlib import Path

import torch
import torch.distributed as dist
import fallline
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.fsdp import fully_shard
from fallline.engine.storage import check_files, checkpoints

torch.set_num_threads(1)
folder, kills = Path(sys.argv[1]), int(sys.argv[2])


def save_for_ever(rank, where, sharded, acknowledge):
    dist.init_process_group("gloo", init_method=f"file://{where}.store", rank=rank, world_size=2)
    model = torch.nn.Linear(200, 200)
    if sharded:
        fully_shard(model)
    step = 0
    while True:
        step += 1
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, step)
        fallline.save_checkpoint(where, model=model, step=step, keep_last=2, wait=False)
        fallline.wait_for_checkpoint()
        if rank == 0:
            os.write(acknowledge, step.to_bytes(4, "little"))


def newest(where):
    """The step of the newest checkpoint, after looking at all of it."""
    path = checkpoints(where)[-1] if checkpoints(where) else None
    if path is None:
        return 0
    weight = torch.empty(200, 200)
    if path.is_dir():
        check_files(path)
        load({"model.0": {"weight": weight}}, checkpoint_id=path, no_dist=True)
    else:
        model = torch.nn.Linear(200, 200)
        step = fallline.load_checkpoint(path, model=model).step
        weight = model.weight.detach()
    step = int(path.name[5:13])
    assert bool((weight == step).all()), f"{path} is torn"
    return step


def attempt(number, randomness):
    where, sharded = folder / str(number), number % 2 == 1
    read, write = os.pipe()
    ranks = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(rank, where, sharded, write)
            finally:
                os._exit(1)
        ranks.append(child)
    os.close(write)
    acknowledged = os.read(read, 4)
    time.sleep(randomness.random() * 0.15)
    for child in ranks:
        os.kill(child, signal.SIGKILL)
    for child in ranks:
        os.waitpid(child, 0)
    while more := os.read(read, 4096):
        acknowledged += more
    assert acknowledged, "the ranks ended before the first save"
    last = int.from_bytes(acknowledged[-4:], "little")
    step = newest(where)
    assert step in (last, last + 1), f"acknowledged {last}, and found {step}"
    return last


randomness = random.Random(0)
print(sum(attempt(number, randomness) for number in range(kills)), "saves,", kills, "kills")
'''


def killed(folder: Path, kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLER, str(folder), str(kills)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    print(done.stdout)


@pytest.mark.slow
def test_killed_while_saving_in_the_background(tmp_path):
    killed(tmp_path, 4)


@pytest.mark.long
def test_killed_two_hundred_times(tmp_path):
    killed(tmp_path, 200)
