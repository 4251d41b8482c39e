"""Stop, resume, compare the bits; and name what was not restored."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


class Augmented(torch.utils.data.Dataset):
    """Draws from python's and torch's randomness for every sample, as an augmentation does."""

    def __len__(self):
        return 22

    def __getitem__(self, i):
        return torch.full((3,), float(i)) / 10 + random.random() + torch.rand(3)


def complete(folder, steps, workers=0, generator=False, accumulate=2, loader=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    stepper = fallline.Stepper(
        model, optimizer, accumulate=accumulate, scheduler=scheduler, clip_norm=0.1
    )
    source = torch.Generator().manual_seed(1) if generator else None
    loader = (loader or torch.utils.data.DataLoader)(
        Augmented(), batch_size=3, shuffle=True, num_workers=workers, generator=source, **options
    )
    fallline.load_checkpoint(folder, stepper=stepper)
    while stepper.updates < steps:
        for x in stepper.over(loader):
            with stepper.micro_batch() as micro:
                micro.backward(model(x).square().mean())
            if stepper.updates >= steps:
                break
    fallline.save_checkpoint(folder, stepper=stepper)
    return stepper


@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize(
    "stop", [1, 4, 5]
)  # the epoch has 8 batches, 4 updates: in its middle, at its end, and in the next
def test_resuming_gives_the_same_bits(stop, generator):
    report = fallline.verify_resume(
        lambda folder, steps: complete(folder, steps, generator=generator), steps=7, stop=stop
    )
    assert report, str(report)
    assert report.not_restored == [] and "same bits" in str(report)


@pytest.mark.slow
def test_resuming_with_worker_processes():
    assert fallline.verify_resume(
        lambda folder, steps: complete(folder, steps, workers=1), steps=3, stop=1
    )


@pytest.mark.parametrize("stop", [1, 4, 5])
def test_resuming_with_a_loader_that_restores_itself(stop):
    """Making its iterator draws from the generators, which the run that went straight on did not."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    report = fallline.verify_resume(
        lambda folder, steps: complete(folder, steps, loader=torchdata.StatefulDataLoader),
        steps=7,
        stop=stop,
    )
    assert report, str(report)


@pytest.mark.slow
def test_resuming_with_persistent_workers():
    """Their randomness carries on from epoch to epoch and cannot be saved: the second epoch is where it showed."""
    assert fallline.verify_resume(
        lambda folder, steps: complete(folder, steps, workers=1, persistent_workers=True),
        steps=6,
        stop=5,
    )


def test_another_kind_of_loader_is_refused(tmp_path):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    complete(tmp_path, 1, loader=torchdata.StatefulDataLoader)
    with pytest.raises(EngineError, match="could restore itself; a DataLoader cannot"):
        complete(tmp_path, 2)


def by_hand(forget):
    """The loop people write, with something left out of the checkpoint."""

    def train(folder, steps):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        begin = 0
        folder.mkdir(exist_ok=True)
        path = folder / "last.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            begin = saved["step"]
            for name in parts.keys() - {forget}:
                parts[name].load_state_dict(saved[name])
            if forget != "rng":
                torch.set_rng_state(saved["rng"])
        for step in range(begin, steps):
            data = torch.randn(
                4,
                3,
                generator=torch.Generator().manual_seed(0 if forget == "data" and begin else step),
            )
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            scheduler.step()
        torch.save(
            {
                "step": steps,
                "rng": torch.get_rng_state(),
                **{n: p.state_dict() for n, p in parts.items()},
            },
            path,
        )
        return parts

    return train


@pytest.mark.parametrize(
    ("forget", "named"),
    [
        ("optimizer", "optimizer.state.0.exp_avg"),
        ("scheduler", "scheduler.last_epoch"),
        ("model", "model.0.weight"),
        ("rng", "randomness.torch"),
    ],
)
def test_what_was_not_restored_is_named(forget, named):
    report = fallline.verify_resume(by_hand(forget))
    assert not report
    assert named in report.not_restored, report.not_restored
    assert forget != "optimizer" or all(
        not name.startswith(("model.", "scheduler.last")) for name in report.not_restored
    )
    assert "Not restored" in str(report)


def test_what_lies_outside_is_told_apart():
    assert fallline.verify_resume(by_hand(None))
    report = fallline.verify_resume(by_hand("data"))
    assert not report and report.not_restored == [] and "place in the data" in str(report)

    def unstable(folder, steps):
        folder.mkdir(exist_ok=True)
        return {"value": random.SystemRandom().random()}

    assert "not deterministic" in str(fallline.verify_resume(unstable))


def test_the_stop_must_lie_inside():
    with pytest.raises(EngineError, match="stop=6 of steps=6"):
        fallline.verify_resume(by_hand(None), steps=6, stop=6)


def test_the_callers_randomness_is_left_as_it_was():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fallline.verify_resume(by_hand(None))
    assert torch.equal(before, torch.get_rng_state())
