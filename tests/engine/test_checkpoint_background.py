"""Checkpoints that are written while training continues: a copy of the moment of the call, in few blocks, from buffers that are used again."""

from __future__ import annotations

import threading
import zipfile

import torch
from torch import nn

import fallline
from fallline.engine import checkpoint
from fallline.engine.staging import Staging

torch.set_num_threads(1)


def step(model, stepper):
    with stepper.micro_batch() as micro:
        micro.backward(model(torch.randn(2, 3)).float().square().mean() * 0.1)


def test_saving_does_not_wait_and_saves_what_was(tmp_path, monkeypatch):
    """Training continues while the copy is written; what is on disk is the moment of the call, buffers included."""
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


def test_buffers_are_used_again_and_never_mixed_up():
    """The copy of a later save, also where tensors have come to share memory, stopped sharing it, or changed their shape."""
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
