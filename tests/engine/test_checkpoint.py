"""Checkpoints: complete, atomic (killed while saving, the previous one is there), safe to load, and loud about what is missing."""

from __future__ import annotations

import random

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
