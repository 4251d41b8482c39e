"""Checkpoints: complete, atomic (killed while saving, the previous one is there), safe to load, and loud about what is missing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from importlib import import_module

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


def test_what_does_not_fit_is_said_and_nothing_is_loaded(tmp_path):
    def adam(model, names=("0.weight", "0.bias", "1.weight", "1.bias")):
        parameters = dict(model.named_parameters())
        return torch.optim.AdamW([parameters[name] for name in names])

    def net(width=3):
        return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3))

    model = net()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with pytest.raises(EngineError, match="step=-1"):
        fallline.save_checkpoint(tmp_path, **parts, step=-1)
    path = fallline.save_checkpoint(tmp_path, **parts, step=1)

    def refused(says, model, optimizer=None, scheduler=None, where=path):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        optimizer = optimizer or adam(model)
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with pytest.raises(EngineError, match=says):
            fallline.load_checkpoint(where, model=model, optimizer=optimizer, scheduler=scheduler)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())

    refused(r"different model.*0\.weight has shape \(3, 3\) there and \(4, 3\) here", net(4))
    bigger = nn.Sequential(*net(), nn.Linear(3, 3))
    refused(
        r"2\.bias, 2\.weight are not in the checkpoint",
        bigger,
        torch.optim.AdamW(bigger.parameters()),
    )
    other = net()
    refused(
        "state of AdamW, and the optimizer is SGD", other, torch.optim.SGD(other.parameters(), lr=1)
    )
    refused(
        r"different order \(number 0 was 0\.0\.weight and is 0\.1\.weight",
        other,
        adam(other, ("1.weight", "0.bias", "0.weight", "1.bias")),
    )
    refused(
        "parameter groups of",
        other,
        torch.optim.AdamW([{"params": [p]} for p in other.parameters()]),
    )
    cosine = adam(other)
    refused(
        "state of StepLR, and the scheduler is CosineAnnealingLR",
        other,
        cosine,
        torch.optim.lr_scheduler.CosineAnnealingLR(cosine, 2),
    )
    saved = torch.load(path, weights_only=True)
    for key in ("parts", "extra", "step"):
        torch.save({k: v for k, v in saved.items() if k != key}, tmp_path / "step-00000009.pt")
        refused("part of it is missing", other, where=tmp_path / "step-00000009.pt")
    torch.save([1, 2], tmp_path / "step-00000009.pt")
    refused("was not written by save_checkpoint", other, where=tmp_path / "step-00000009.pt")


def test_more_state_by_name_and_an_average(tmp_path):
    class Buffer:
        def __init__(self, size):
            self.size = size

        def state_dict(self):
            return {"size": self.size}

        def load_state_dict(self, state):
            self.size = state["size"]

    def build():
        model = nn.Linear(2, 1)
        ema = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, ema, fallline.Stepper(model, optimizer, ema=ema)

    model, ema, stepper = build()
    for _ in range(3):
        with stepper.micro_batch() as micro:
            micro.backward(model(torch.randn(1, 2)).sum())
    fallline.save_checkpoint(tmp_path, stepper=stepper, also={"replay": Buffer(7)})
    _, other_ema, again = build()
    buffer = Buffer(0)
    with pytest.raises(EngineError, match="replay was saved and would not be restored"):
        fallline.load_checkpoint(tmp_path, stepper=again)
    fallline.load_checkpoint(tmp_path, stepper=again, also={"replay": buffer})
    assert buffer.size == 7 and torch.equal(ema.module.weight, other_ema.module.weight)
    assert int(other_ema.n_averaged) == 3
    with pytest.raises(EngineError, match="this name is taken"):
        fallline.save_checkpoint(tmp_path, stepper=stepper, also={"model": buffer})
    with pytest.raises(EngineError, match="belong in extra"):
        fallline.save_checkpoint(tmp_path, stepper=stepper, also={"count": 3})


def test_saving_does_not_wait_and_saves_what_was(tmp_path, monkeypatch):
    """Training continues while the copy is written; what is on disk is the moment of the call, buffers included."""
    import threading

    from fallline.engine import checkpoint

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stepper = fallline.Stepper(model, optimizer, clip_norm=1.0)
    step(model, stepper)
    wanted = {k: v.clone() for k, v in model.state_dict().items()}
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    go, write = threading.Event(), checkpoint.write_through

    def slowly(*args):
        go.wait(30)
        write(*args)

    monkeypatch.setattr(checkpoint, "write_through", slowly)
    path = fallline.save_checkpoint(tmp_path, stepper=stepper, wait=False)
    for _ in range(3):
        step(model, stepper)
    assert not path.exists() and stepper.updates == 4
    go.set()
    assert fallline.wait_for_checkpoint() == path and fallline.wait_for_checkpoint() is None
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    again = fallline.Stepper(other, torch.optim.AdamW(other.parameters(), lr=0.1), clip_norm=1.0)
    assert fallline.load_checkpoint(tmp_path, stepper=again).step == 1
    assert all(torch.equal(wanted[k], v) for k, v in other.state_dict().items())
    loaded = [s["exp_avg"] for s in again.optimizers[0].state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, loaded, strict=True))
    # Without a Stepper the copy is complete when the call returns: the optimizer may step at once.
    parts = {"model": other, "optimizer": again.optimizers[0]}
    wanted = other[0].weight.detach().clone()
    path = fallline.save_checkpoint(tmp_path / "parts", **parts, step=1, wait=False)
    with torch.no_grad():
        other[0].weight.zero_()
    fallline.wait_for_checkpoint()
    assert torch.equal(torch.load(path)["parts"]["model"][0]["0.weight"], wanted)


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


def test_buffers_are_used_again_and_never_mixed_up():
    """The copy of a later save, also where tensors have come to share memory, stopped sharing it, or changed their shape."""
    from fallline.engine.staging import Staging

    staging = Staging(pinned=False)
    a, b = torch.arange(4.0), torch.arange(4.0) + 10
    for state in (
        {"a": a, "b": b, "step": 1},
        {"a": a + 1, "b": b + 1, "step": 2},
        {"a": a, "b": a, "step": 3},  # tied
        {"a": a + 2, "b": b + 2, "step": 4},  # and untied
        {"a": a[:2], "b": b.view(2, 2).t(), "step": [5, {"c": a}]},
        {"a": a[2:], "b": b.view(2, 2).t() + 1, "step": [6, {"c": a + 3}]},
    ):
        wanted = [t.clone() for t in (state["a"], state["b"])]
        staged = staging(state, False)
        for key in ("a", "b"):
            assert staged[key].data_ptr() != state[key].data_ptr()
        state["a"].add_(0)  # what the source does later is not seen
        assert all(map(torch.equal, wanted, (staged["a"], staged["b"])))
        if isinstance(staged["step"], list):
            assert staged["step"][0] == state["step"][0]
            assert torch.equal(staged["step"][1]["c"], state["step"][1]["c"])
        else:
            assert staged["step"] == state["step"]


def test_a_background_save_writes_few_blocks_and_loads_tensors_apart(tmp_path):
    """Each block in the file is a turn at Python's lock that training waits for."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    stepper = fallline.Stepper(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.randn(2, 4)).sum())
    path = fallline.save_checkpoint(tmp_path, stepper=stepper, wait=False)
    fallline.wait_for_checkpoint()
    with zipfile.ZipFile(path) as archive:
        blocks = [name for name in archive.namelist() if "/data/" in name]
    assert len(blocks) < 10 < len(list(model.parameters()))
    wanted = [p.detach().clone() for p in model.parameters()]
    fallline.load_checkpoint(tmp_path, stepper=stepper)
    assert all(map(torch.equal, wanted, model.parameters()))
    for state in stepper.optimizers[0].state.values():
        assert state["exp_avg"].untyped_storage().nbytes() == state["exp_avg"].nbytes


def test_a_second_stepper_is_saved_with_its_model(tmp_path):
    """A GAN, stopped and continued: one checkpoint for both, and the generator's windows close with the discriminator's."""
    dataset = torch.utils.data.TensorDataset(torch.randn(28, 2, generator=torch.Generator()))

    def run(stop, folder):
        fallline.seed_everything(0)
        nets = nn.Linear(3, 2), nn.Linear(2, 1)
        generator, critic = (
            fallline.Stepper(net, torch.optim.Adam(net.parameters(), lr=0.01), accumulate=2)
            for net in nets
        )
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True)
        fallline.load_checkpoint(folder, stepper=critic, also={"generator": generator})
        while critic.updates < stop:
            for (real,) in critic.over(loader):
                noise = torch.randn(len(real), 3)
                with critic.micro_batch() as micro:
                    micro.backward(nets[1](nets[0](noise).detach()).mean() - nets[1](real).mean())
                with generator.micro_batch(last=critic.updated) as micro:
                    micro.backward(-nets[1](nets[0](noise)).mean())
                if critic.updated and critic.updates == stop:
                    break
        assert generator.updates == critic.updates
        fallline.save_checkpoint(folder, stepper=critic, also={"generator": generator})
        return [p.detach() for net in nets for p in net.parameters()]

    straight = run(
        6, tmp_path / "straight"
    )  # four updates in an epoch, the last one with a remainder
    run(3, tmp_path / "stopped")
    assert all(map(torch.equal, straight, run(6, tmp_path / "stopped")))
    # A different generator is noticed before anything is loaded.
    critic, other = nn.Linear(2, 1), nn.Linear(3, 4)
    before = critic.weight.detach().clone()
    steppers = [
        fallline.Stepper(net, torch.optim.Adam(net.parameters())) for net in (critic, other)
    ]
    with pytest.raises(EngineError, match="saved from a different model"):
        fallline.load_checkpoint(
            tmp_path / "stopped", stepper=steppers[0], also={"generator": steppers[1]}
        )
    assert torch.equal(before, critic.weight)
    for _ in steppers[1].over([]):
        pass
    with pytest.raises(EngineError, match="a folder of its own"):
        fallline.save_checkpoint(tmp_path, stepper=steppers[0], also={"generator": steppers[1]})
