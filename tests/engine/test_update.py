"""What an update does besides being exact: skipping, scheduling, reporting, noise, statistics."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def made(optimizer=torch.optim.SGD, model=None, scheduled=False, **options):
    model = model or nn.Linear(2, 1)
    made_optimizer = optimizer(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(made_optimizer, 1, gamma=0.5) if scheduled else None
    return model, fallline.Stepper(model, made_optimizer, scheduler=scheduler, **options)


def one(model, stepper, x):
    with stepper.micro_batch() as micro:
        micro.backward(model(x).float().sum())


GOOD, BAD = torch.ones(1, 2), torch.full((1, 2), math.inf)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("fused", [False, True])
def test_an_update_that_is_not_finite_is_skipped_and_the_scheduler_with_it(precision, fused):
    def optimizer(parameters, lr):
        return torch.optim.AdamW(parameters, lr=lr, fused=fused)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if precision == "fp16" else None
    model, stepper = made(
        optimizer, scheduled=True, precision=precision, scaler=scaler, clip_norm=1.0
    )
    one(model, stepper, GOOD)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        one(model, stepper, BAD)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert stepper.last.skipped and not math.isfinite(stepper.last.norm)
    assert stepper.updates == 1 and stepper.attempts == 2
    assert stepper.schedulers[0].last_epoch == 1 and stepper.last.lr == 0.05
    one(model, stepper, GOOD)
    assert stepper.updates == 2 and not stepper.last.skipped
    assert int(next(iter(stepper.optimizers[0].state.values()))["step"]) == 2
    if precision == "fp16":
        assert stepper.scaler.get_scale() == 512.0  # halved once


def test_skipping_outside_fp16_warns_once():
    model, stepper = made()
    with pytest.warns(UserWarning, match="update 0 is not finite"):
        one(model, stepper, BAD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one(model, stepper, BAD)
    assert stepper.updates == 0


def test_raise_and_apply():
    model, stepper = made(nonfinite="raise")
    with pytest.raises(EngineError, match="stops here"):
        one(model, stepper, BAD)
    model, stepper = made(nonfinite="apply")
    one(model, stepper, BAD)
    assert not stepper.last.skipped and not torch.isfinite(model.weight).all()


def test_one_bad_micro_batch_drops_its_window_and_no_other():
    model, stepper = made(
        accumulate=2, precision="fp16", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)
    )
    for x in (GOOD, BAD, GOOD, GOOD):
        one(model, stepper, x)
    assert stepper.attempts == 2 and stepper.updates == 1 and torch.isfinite(model.weight).all()


def test_schedulers_step_as_often_as_updates_are_applied():
    model, stepper = made(scheduled=True, accumulate=3)
    for _ in range(2):
        for x in stepper.over([GOOD] * 7):
            one(model, stepper, x)
    assert stepper.updates == stepper.schedulers[0].last_epoch == 6 and stepper.epoch == 2


def test_gradients_of_another_loss_do_not_leak_into_a_window():
    """As in a GAN: the generator's loss leaves gradients on the discriminator."""
    model, stepper = made()
    model(GOOD * 1000).sum().backward()
    before = model.weight.detach().clone()
    one(model, stepper, GOOD)
    assert torch.allclose(model.weight, before - 0.1)


def test_report():
    model, stepper = made(accumulate=2, clip_norm=0.5)
    assert stepper.last is None
    one(model, stepper, GOOD)
    one(model, stepper, GOOD)
    last = stepper.last
    assert (
        last.norm == pytest.approx(math.sqrt(3))
        and last.clipped
        and last.coefficient == pytest.approx(0.5 / math.sqrt(3), rel=1e-5)
    )
    assert last.scale == 1.0 and last.lr == 0.1 and last.micro_batches == 2 and last.update == 0
    assert "norm=1.73" in repr(last)


def test_statistics_are_of_the_true_gradient():
    model, stepper = made(
        accumulate=2,
        precision="fp16",
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0),
        statistics=True,
        clip_norm=1e-3,
    )
    one(model, stepper, GOOD)
    one(model, stepper, GOOD)
    rows = stepper.last.statistics.rows()
    assert [row["name"] for row in rows] == ["weight", "bias"]
    assert rows[0]["mean"] == pytest.approx(1.0, rel=1e-3) and rows[0]["elements"] == 2
    assert float(stepper.last.statistics.total_norm) == pytest.approx(stepper.last.norm, rel=1e-5)


def test_noise_is_the_same_everywhere_and_fades_as_told():
    seen = []
    for _ in range(2):
        torch.manual_seed(torch.seed() % 1000)  # noise does not depend on the global generator
        model = nn.Linear(50, 50)
        nn.init.zeros_(model.weight)
        stepper = fallline.Stepper(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            noise=lambda update: 1.0 / (1 + update) ** 2,
        )
        steps = []
        for _ in range(2):
            before = model.weight.detach().clone()
            with stepper.micro_batch() as micro:
                micro.backward(model(torch.zeros(1, 50)).sum() * 0)
            steps.append(model.weight.detach() - before)
        seen.append(steps)
    assert torch.equal(seen[0][0], seen[1][0]) and not torch.equal(seen[0][0], seen[0][1])
    assert float(seen[0][0].std()) == pytest.approx(1.0, rel=0.1) and float(
        seen[0][1].std()
    ) == pytest.approx(0.25, rel=0.1)


def test_a_sum_over_many_tokens_does_not_overflow_fp16():
    """A sum over n tokens has gradients n times the mean's; the first updates must not be lost to overflow."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    stepper = fallline.Stepper(
        model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16", accumulate=2
    )
    for _ in range(4):
        with stepper.micro_batch() as micro:
            micro.backward(model(torch.randn(4096, 16)).square().sum(), weight=4096 * 4)
    assert stepper.updates == 2 and stepper.scaler.get_scale() == 65536.0


def test_a_parameter_group_that_is_added_later_is_clipped_too():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0)
    stepper = fallline.Stepper(model, optimizer, clip_norm=0.1)
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": model[1].parameters()})
    before = [p.detach().clone() for p in model.parameters()]
    with stepper.micro_batch() as micro:
        micro.backward(model[1](model[0](torch.ones(4, 2))).sum())
    moved = torch.stack(
        [(a - b).norm() for a, b in zip(before, model.parameters(), strict=True)]
    ).norm()
    assert float(moved.detach()) == pytest.approx(0.1, rel=1e-4)


def test_importing_fallline_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, fallline, fallline.engine; assert 'torch' not in sys.modules; fallline.Stepper; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
