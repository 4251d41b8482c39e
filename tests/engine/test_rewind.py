"""After a spike the run ends where the run without those samples ends, bit for bit."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def trained(bad, rewind=None, left_out=None, epochs=2, value=1e4, after=None, seen=None, load=None):
    torch.manual_seed(0)
    x = torch.randn(160, 3, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    order = fallline.Order(160, 2, seed=4)
    for epoch, place in bad:  # a broken label, wherever it lies
        y[order.samples(epoch, place, place + 1)] = value
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    stepper = fallline.Stepper(
        model, optimizer, accumulate=2, clip_norm=1.0, scheduler=scheduler, on_spike=rewind
    )
    stepper._position.left_out = left_out or {}
    loader = DataLoader(TensorDataset(x, y), batch_sampler=order)
    if seen is not None:
        seen.append(stepper)
    if load is not None:
        fallline.load_checkpoint(load, stepper=stepper)
    for _ in range(epochs):
        for inputs, targets in stepper.over(loader):
            with stepper.micro_batch() as micro:
                micro.backward(nn.functional.mse_loss(model(inputs), targets))
            if after is not None and stepper.updated:
                after(stepper.updates)
    return model, stepper, scheduler


def same(a, b):
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize("value", [1e4, float("nan")])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.filterwarnings("ignore:update")
def test_the_run_ends_as_if_the_samples_had_not_been(value, on_disk, tmp_path):
    rewind = fallline.Rewind(keep=2, every=7, folder=tmp_path if on_disk else None)
    model, stepper, scheduler = trained([(0, 101)], rewind, value=value)
    # The bad label comes again in the second epoch, in another window.
    assert len(rewind.history) == 2
    first, second = rewind.history
    assert first.update == 25 and first.to == 21 and first.places == (100, 104) and first.epoch == 0
    assert second.epoch == 1
    left_out = {h.epoch: [h.places] for h in rewind.history}
    want, reference, wanted_scheduler = trained([(0, 101)], left_out=left_out, value=value)
    assert same(model, want) and stepper.updates == reference.updates == 78
    assert scheduler.get_last_lr() == wanted_scheduler.get_last_lr()
    assert stepper.epoch == reference.epoch == 2
    assert stepper.samples_of(25) == reference.samples_of(25)
    assert len(list(tmp_path.iterdir())) == (2 if on_disk else 0)
    del rewind, stepper
    gc.collect()
    assert not list(tmp_path.iterdir()), "snapshots last as long as the run"


@pytest.mark.filterwarnings("ignore:update")
def test_a_snapshot_that_cannot_be_read_is_passed_over(tmp_path):
    rewind = fallline.Rewind(keep=3, every=7, folder=tmp_path)

    def damage(update):
        if update == 24:
            rewind._snapshots._kept[-1][1].wait()
            (newest,) = tmp_path.glob(".step-00000021.*")
            content = bytearray(newest.read_bytes())
            content[len(content) // 2] ^= 4
            newest.write_bytes(content)

    model, _, _ = trained([(0, 101)], rewind, epochs=1, after=damage)
    (back,) = rewind.history
    assert back.update == 25 and back.to == 14
    want, _, _ = trained([(0, 101)], left_out={0: [back.places]}, epochs=1)
    assert same(model, want)

    def remove(update):
        if update == 24:
            rewind._snapshots._kept[-1][1].wait()
            for file in tmp_path.iterdir():
                file.unlink()

    rewind = fallline.Rewind(keep=3, every=7, folder=tmp_path)
    with pytest.raises(EngineError, match=r"no snapshot can be read .* load a checkpoint"):
        trained([(0, 101)], rewind, epochs=1, after=remove)


@pytest.mark.filterwarnings("ignore:a snapshot to go back to was not written")
@pytest.mark.filterwarnings("ignore:update")
def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    rewind = fallline.Rewind(every=7, folder=tmp_path / "file")
    watched, _, _ = trained([], rewind, epochs=1)
    assert same(watched, trained([], epochs=1)[0])


@pytest.mark.filterwarnings("ignore:update")
def test_a_resumed_run_goes_back_as_the_straight_one(tmp_path):
    """What it judges by is in the checkpoint: stopped just before the spike, it is still a spike."""
    straight, _, _ = trained([(0, 101)], fallline.Rewind(every=7), epochs=1)

    def save(update):
        if update == 21:
            fallline.save_checkpoint(tmp_path, stepper=now[0])

    now = []
    trained([(0, 101)], fallline.Rewind(every=7), epochs=1, after=save, seen=now)
    rewind = fallline.Rewind(every=7)
    resumed, _, _ = trained([(0, 101)], rewind, epochs=1, load=tmp_path)
    assert [back.to for back in rewind.history] == [21]
    assert same(straight, resumed)


def test_it_says_so_and_gives_up_in_the_end():
    with pytest.warns(
        UserWarning, match=r"update 25 is a spike \(loss .*back to update 21, without samples 100"
    ):
        trained([(0, 101)], fallline.Rewind(every=7), epochs=1)
    bad = [(0, place) for place in range(80, 160, 4)]
    with (
        warnings.catch_warnings(),
        pytest.raises(EngineError, match="after going back 3 times"),
    ):
        warnings.simplefilter("ignore")
        trained(bad, fallline.Rewind(every=7, most=3))


def test_a_run_without_spikes_is_the_same_run():
    plain, _, _ = trained([])
    rewind = fallline.Rewind(every=5)
    watched, _, _ = trained([], rewind)
    assert same(plain, watched) and rewind.history == []


def test_what_it_needs():
    with pytest.raises(EngineError, match="Rewind needs"):
        fallline.Rewind(keep=0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper = fallline.Stepper(model, optimizer, on_spike=fallline.Rewind())
    with pytest.raises(EngineError, match="global order"):
        next(iter(stepper.over([torch.ones(1, 1)])))
