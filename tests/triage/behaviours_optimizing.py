"""What claims of optimizers, schedules and parameters rest on (`claims/optimizing-notes.md`)."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from tests.triage.behaviours_distributed import _documents
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import lr_scheduler


def a_group_can_be_added() -> None:
    old, new = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([old], lr=0.1)
    old.grad = torch.ones(1)
    optimizer.step()
    optimizer.add_param_group({"params": [new], "lr": 0.01})
    new.grad = torch.ones(1)
    optimizer.step()
    assert optimizer.state[old]["step"] == 2 and optimizer.state[new]["step"] == 1
    assert new.item() == pytest.approx(0.99)


def amsgrad_keeps_the_largest() -> None:
    moved = []
    for amsgrad in (False, True):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.0, 0.5), amsgrad=amsgrad)
        for gradient in (100.0, *[1.0] * 10):
            weight.grad = torch.tensor([gradient])
            before = weight.item()
            optimizer.step()
        moved.append(abs(weight.item() - before))
    assert moved[1] < moved[0] / 10


def maximize_turns_the_sign() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1, maximize=True).step()
    assert weight.item() == pytest.approx(0.1)


def fused_needs_no_copies() -> None:
    _documents(torch.optim.AdamW, "foreach", "fused", "uses ~ sizeof(params) more peak memory")


def lbfgs_calls_its_closure_often() -> None:
    weight = nn.Parameter(torch.tensor([-1.2, 1.0]))
    optimizer = torch.optim.LBFGS([weight], line_search_fn="strong_wolfe")
    calls = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (1 - weight[0]) ** 2 + 100 * (weight[1] - weight[0] ** 2) ** 2
        loss.backward()
        calls.append(loss.item())
        return loss

    optimizer.step(closure)
    assert len(calls) > 10
    with pytest.raises(TypeError, match="closure"):
        optimizer.step()  # type: ignore[call-arg]


def averaged_model_can_be_an_ema() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.Linear(1, 1, bias=False)
    for given, expected in ((get_ema_multi_avg_fn(0.9), 0.1), (None, 0.5)):
        nn.init.zeros_(model.weight)
        averaged = AveragedModel(model, multi_avg_fn=given)
        averaged.update_parameters(model)
        nn.init.ones_(model.weight)
        averaged.update_parameters(model)
        assert averaged.module.weight.item() == pytest.approx(expected)


def update_bn_recomputes_statistics() -> None:
    from torch.optim.swa_utils import update_bn

    norm = nn.BatchNorm1d(1)
    update_bn([torch.full((4, 1), 3.0)], norm)
    assert norm.running_mean is not None and norm.running_mean.item() == pytest.approx(3.0)
    plain = nn.LayerNorm(1)
    update_bn([torch.ones(4, 1)], plain)
    assert not list(plain.buffers())


def _optimizer(lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def get_lr_is_not_for_reading() -> None:
    optimizer = _optimizer()
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    optimizer.step()
    scheduler.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = scheduler.get_lr()[0]
    assert scheduler.get_last_lr()[0] == pytest.approx(0.01)
    assert wrong == pytest.approx(0.001)


def a_warmup_from_zero_wastes_one_step() -> None:
    optimizer = _optimizer()
    lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    assert optimizer.param_groups[0]["lr"] == 0
    with pytest.raises(ValueError, match="greater than 0"):
        lr_scheduler.LinearLR(_optimizer(), start_factor=0.0)


def sequential_switches_at_its_milestones() -> None:
    optimizer = _optimizer(1.0)
    scheduler = lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
            lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
        ],
        milestones=[10],
    )
    rates = []
    for _ in range(30):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[10] == pytest.approx(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-6)


def _rates(scheduler: lr_scheduler.LRScheduler, many: int) -> list[float]:
    rates = []
    for _ in range(many):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def cosine_is_periodic() -> None:
    rates = _rates(lr_scheduler.CosineAnnealingLR(_optimizer(), T_max=10), 21)
    assert rates[10] == pytest.approx(0.0) and rates[20] == pytest.approx(0.1)


def warm_restarts_lengthen() -> None:
    rates = _rates(lr_scheduler.CosineAnnealingWarmRestarts(_optimizer(), 10, T_mult=2), 71)
    assert [n for n, rate in enumerate(rates) if rate == pytest.approx(0.1)] == [0, 10, 30, 70]


def a_schedule_counts_its_calls() -> None:
    rates = _rates(lr_scheduler.StepLR(_optimizer(), step_size=3), 4)
    assert rates[2] == 0.1 and rates[3] == pytest.approx(0.01)


def a_parametrization_holds_by_construction() -> None:
    class Positive(nn.Module):
        def forward(self, raw: torch.Tensor) -> torch.Tensor:
            return nn.functional.softplus(raw)

    layer = nn.Linear(3, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", Positive())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert (layer.weight > 0).all() and layer.weight.max() < 0.5


def orthogonal_stays_orthogonal() -> None:
    layer = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        layer(torch.randn(8, 4)).square().mul(torch.arange(4.0)).sum().backward()
        optimizer.step()
    assert torch.allclose(layer.weight @ layer.weight.T, torch.eye(4), atol=1e-4)
    with pytest.warns(FutureWarning, match="deprecated"):
        torch.nn.utils.weight_norm(nn.Linear(2, 2))
    named = parametrizations.weight_norm(nn.Linear(2, 2)).state_dict()
    assert "parametrizations.weight.original0" in named


def pruned_weights_stay_zero_while_masked() -> None:
    layer = nn.Linear(4, 1, bias=False)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    zero = layer.weight == 0
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, weight_decay=0.1)
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    layer(torch.ones(1, 4))
    assert (layer.weight[zero] == 0).all() and {"weight_orig", "weight_mask"} <= set(
        layer.state_dict()
    )
    prune.remove(layer, "weight")
    assert set(layer.state_dict()) == {"weight"}


def default_initialisations() -> None:
    linear = nn.Linear(100, 1000)
    bound = 1 / math.sqrt(100)
    assert 0.99 * bound < linear.weight.abs().max() <= bound
    assert linear.bias.abs().max() <= bound
    assert nn.Embedding(1000, 100).weight.std().item() == pytest.approx(1.0, abs=0.02)
    assert nn.LSTM(4, 25).weight_hh_l0.abs().max() <= 1 / 5
    assert nn.BatchNorm1d(3).weight.tolist() == [1, 1, 1]


def zero_biases_break_no_symmetry() -> None:
    layer = nn.Linear(3, 4)
    nn.init.zeros_(layer.bias)
    out = layer(torch.ones(1, 3))
    assert out.unique().numel() == 4


def meta_models_cost_nothing() -> None:
    with torch.device("meta"):
        model = nn.Linear(100_000, 100_000)
    assert model.weight.is_meta
    assert nn.utils.skip_init(nn.Linear, 3, 2).weight.shape == (2, 3)


def buffers_move_and_are_saved() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("made", torch.ones(1), persistent=False)
    module.plain = torch.ones(1)  # type: ignore[assignment]
    assert list(module.state_dict()) == ["kept"] and not list(module.parameters())
    module.to(torch.float64)
    assert module.made.dtype == torch.float64 and module.plain.dtype == torch.float32


def module_names_have_no_dots() -> None:
    with pytest.raises(KeyError, match=r"t contain"):
        nn.ModuleDict({"a.b": nn.Linear(1, 1)})


def only_registered_parameters_count() -> None:
    module = nn.Module()
    module.hidden = [nn.Parameter(torch.ones(1))]  # type: ignore[assignment]
    assert not list(module.parameters())
    module.seen = nn.ParameterList([nn.Parameter(torch.ones(1))])
    assert len(list(module.parameters())) == 1


def autocast_keeps_reductions_in_float32() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = nn.Linear(2, 2)(torch.ones(1, 2))
        assert x.dtype == torch.bfloat16
        assert nn.functional.mse_loss(x, torch.zeros(1, 2)).dtype == torch.float32
    model = nn.Linear(2, 2).bfloat16()
    assert model(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


def half_models_lose_small_updates() -> None:
    weight = torch.ones(1, dtype=torch.float16)
    assert weight - 1e-4 == weight and torch.ones(1) - 1e-4 != torch.ones(1)
    scaler = torch.amp.GradScaler("cpu")
    halved = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = torch.optim.SGD([halved], lr=0.1)
    scaler.scale(halved.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)
