"""What disks, other processes and strangers do to checkpoint files: the previous one stays, damage is noticed, no code is run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


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


def test_a_disk_that_is_really_full(tmp_path):
    """torch reports it in its own way: the words must say what it is, and nothing may be left behind."""
    import resource

    model = nn.Linear(400, 400)
    fallline.save_checkpoint(tmp_path, model=nn.Linear(2, 2), step=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(
            EngineError, match=r"cannot write .*The previous checkpoint is untouched"
        ):
            fallline.save_checkpoint(tmp_path, model=model, step=2)
        path = fallline.save_checkpoint(tmp_path, model=model, step=3, wait=False)
        with pytest.raises(EngineError, match=r"in the background was not written: cannot write"):
            fallline.save_checkpoint(tmp_path, model=model, step=4)
        assert not path.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001.pt"]
    assert fallline.wait_for_checkpoint() is None
    fallline.save_checkpoint(tmp_path, model=model, step=5)


def test_two_processes_that_save_at_once(tmp_path, monkeypatch):
    """Each has a file of its own until it is whole, and leaves the other's alone; what a dead one left goes."""
    from fallline.engine import storage

    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    dead = 2**22 + 1  # above any process number of Linux, so that no new process gets it meanwhile
    left = tmp_path / f".step-00000001.pt.{storage._host()}-{dead}-0123abcd.tmp"
    alive = tmp_path / f".step-00000001.pt.{storage._host()}-{os.getppid()}-0123abcd.tmp"
    foreign = tmp_path / ".step-00000001.pt.elsewhere-1-0123abcd.tmp"
    for file in (left, alive, foreign):
        file.write_text("half of one")
    write, inside = storage.write_through, []

    def slowly(path, saved):
        write(path, saved)
        if not inside:
            inside.append(path)
            fallline.save_checkpoint(tmp_path, model=other, step=1)  # the other process

    monkeypatch.setattr(import_module("fallline.engine.checkpoint"), "write_through", slowly)
    fallline.save_checkpoint(tmp_path, model=model, step=1)
    assert inside and not left.exists() and alive.exists() and foreign.exists()
    loaded = nn.Linear(2, 2)
    fallline.load_checkpoint(tmp_path, model=loaded)
    assert torch.equal(loaded.weight, model.weight)  # the last one to finish, and whole


def test_flipped_bits_are_noticed(tmp_path):
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 1))
    path = fallline.save_checkpoint(tmp_path, model=model, step=1)
    whole, noticed = path.read_bytes(), 0
    randomness = random.Random(0)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[randomness.randrange(len(whole))] ^= 1 << randomness.randrange(8)
        path.write_bytes(damaged)
        other = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 1))
        before = [p.detach().clone() for p in other.parameters()]
        try:
            fallline.load_checkpoint(path, model=other)
        except EngineError:
            noticed += 1
            want = before  # nothing was loaded
        else:
            want = list(model.parameters())  # the bit did not matter: padding between records
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), want, strict=True))
    assert noticed > 100


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
