"""Checkpoints: complete, atomic (killed while saving, the previous one is there), safe to load, and loud about what is missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy
import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def made(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    return model, fallline.Stepper(model, optimizer, scheduler=scheduler, clip_norm=1.0, **options)


def step(model, stepper):
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.randn(2, 3)).float().square().mean() * 0.1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_everything_comes_back(tmp_path, precision):
    model, stepper = made(accumulate=2, precision=precision)
    for _ in range(5):  # in mid-window: two updates and one micro-batch
        step(model, stepper)
    random.random(), numpy.random.rand()
    fallline.save_checkpoint(
        tmp_path, stepper=stepper, extra={"best": numpy.float64(0.5), "note": "x"}
    )
    after = [random.random(), numpy.random.rand(), torch.rand(3)]
    for _ in range(3):
        step(model, stepper)

    other, again = made(accumulate=2, precision=precision)
    loaded = fallline.load_checkpoint(tmp_path, stepper=again)
    assert loaded.step == 2 and loaded.extra == {"best": 0.5, "note": "x"}
    assert after[:2] == [random.random(), numpy.random.rand()] and torch.equal(
        after[2], torch.rand(3)
    )
    for _ in range(3):
        step(other, again)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    assert again.updates == stepper.updates == 4
    assert again.schedulers[0].get_last_lr() == stepper.schedulers[0].get_last_lr()
    if precision == "fp16":
        assert again.scaler.state_dict() == stepper.scaler.state_dict()


def test_without_a_stepper(tmp_path):
    def build():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(5)
        loader = torch.utils.data.DataLoader(range(10), shuffle=True, generator=generator)
        return {
            "model": model,
            "optimizer": optimizer,
            "scaler": torch.amp.GradScaler("cpu"),
            "loader": loader,
        }

    parts = build()
    list(parts["loader"])
    path = fallline.save_checkpoint(tmp_path / "runs", **parts, step=7, epoch=1)
    assert path.name == "step-00000007.pt"
    order = list(parts["loader"])
    fresh = build()
    loaded = fallline.load_checkpoint(path, **fresh)
    assert (loaded.step, loaded.epoch) == (7, 1)
    assert torch.equal(fresh["model"].weight, parts["model"].weight)
    assert list(fresh["loader"]) == order


def test_a_compiled_model_loads_where_it_is_not_compiled(tmp_path):
    model = nn.Linear(2, 1)
    fallline.save_checkpoint(tmp_path, model=torch.compile(model, backend="eager"), step=0)
    other = nn.Linear(2, 1)
    fallline.load_checkpoint(tmp_path, model=other)
    assert torch.equal(model.weight, other.weight)


def test_newest_wins_and_old_ones_go(tmp_path):
    assert fallline.load_checkpoint(tmp_path / "nothing", model=nn.Linear(1, 1)) is None
    model = nn.Linear(1, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".step-00000001.pt.tmp").write_text("of a save that was killed")
    for n in range(12):
        nn.init.constant_(model.weight, n)
        fallline.save_checkpoint(tmp_path, model=model, step=n, keep_last=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "notes.txt",
        "step-00000010.pt",
        "step-00000011.pt",
    ]
    assert fallline.load_checkpoint(tmp_path, model=model).step == 11 and model.weight.item() == 11
    assert (
        fallline.load_checkpoint(tmp_path / "step-00000010.pt", model=model).step == 10
        and model.weight.item() == 10
    )


def test_what_would_be_lost_is_said(tmp_path):
    model, stepper = made()
    step(model, stepper)
    with pytest.raises(EngineError, match=r"step=\.\.\."):
        fallline.save_checkpoint(tmp_path, model=model)
    with pytest.raises(EngineError, match="keep_last=0"):
        fallline.save_checkpoint(tmp_path, stepper=stepper, keep_last=0)
    with pytest.raises(EngineError, match="give it alone"):
        fallline.save_checkpoint(tmp_path, stepper=stepper, model=model)
    with pytest.raises(EngineError, match="without a model"):
        fallline.save_checkpoint(tmp_path, optimizer=stepper.optimizers, step=1)
    with pytest.raises(EngineError, match=r"extra\.f holds a .*function"):
        fallline.save_checkpoint(tmp_path, stepper=stepper, extra={"f": made})
    assert not list(tmp_path.iterdir())
    path = fallline.save_checkpoint(tmp_path, stepper=stepper)
    with pytest.raises(
        EngineError, match="optimizer was saved and would not be restored; scheduler was saved"
    ):
        fallline.load_checkpoint(path, model=model)
    fallline.load_checkpoint(path, model=model, strict=False)
    with pytest.raises(EngineError, match=r"does not exist; there are step-00000001\.pt"):
        fallline.load_checkpoint(tmp_path / "step-00000002.pt", model=model)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(EngineError, match="cannot be read"):
        fallline.load_checkpoint(tmp_path, stepper=stepper)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    model = nn.Linear(2, 1)
    fallline.save_checkpoint(tmp_path, model=model, step=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        EngineError, match=r"No space left on device\. The previous checkpoint is untouched"
    ):
        fallline.save_checkpoint(tmp_path, model=model, step=2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001.pt"]


def test_loading_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, ("touch " + str(tmp_path / "ran"),))

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "step-00000001.pt")
    with pytest.raises(EngineError, match="cannot be read"):
        fallline.load_checkpoint(tmp_path, model=nn.Linear(1, 1))
    assert not (tmp_path / "ran").exists()


SAVER = """
import sys, torch, fallline
torch.set_num_threads(1)
model = torch.nn.Linear(400, 400)
print("ready", flush=True)
for n in range(1, 100000):
    torch.nn.init.constant_(model.weight, n)
    fallline.save_checkpoint(sys.argv[1], model=model, step=n, keep_last=2)
    print(n, flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_point_of_saving(tmp_path):
    """Killed again and again, at random moments: the newest checkpoint is whole, and is the last one that was announced or a later one."""
    randomness = random.Random(1)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        announced = 0
        for line in child.stdout:
            announced = announced if line.strip() == "ready" else int(line)
            if announced >= 3:
                time.sleep(randomness.random() * 0.02)
                child.send_signal(signal.SIGKILL)
                break
        announced = max([announced, *map(int, child.stdout.read().split())])
        child.wait()
        model = nn.Linear(400, 400)
        loaded = fallline.load_checkpoint(folder, model=model)
        assert loaded.step in (announced, announced + 1)
        assert bool((model.weight == loaded.step).all())
