"""What training does: schedules, optimizers, starts and curves, as claims say: each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def _trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, rate: float, steps: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return float(F.mse_loss(model(x), y))


def standardised_targets_learn_faster() -> None:
    x = torch.randn(64, 4)
    y = 1000 + 300 * x.sum(1, keepdim=True)
    scaled = (y - y.mean()) / y.std()
    torch.manual_seed(0)
    plain = _trained(nn.Linear(4, 1), x, y, 0.01, 50) / float(y.var())
    torch.manual_seed(0)
    assert _trained(nn.Linear(4, 1), x, scaled, 0.01, 50) < plain


def a_pretrained_start_needs_fewer_updates() -> None:
    x = torch.randn(64, 8)
    first, second = x.sum(1, keepdim=True), x.sum(1, keepdim=True) + 0.3 * x[:, :1]
    model = nn.Linear(8, 1)
    _trained(model, x, first, 0.1, 200)
    assert _trained(model, x, second, 0.1, 5) < _trained(nn.Linear(8, 1), x, second, 0.1, 5)


def a_running_mean_lags() -> None:
    losses = torch.linspace(1.0, 0.0, 100)
    running = losses.cumsum(0) / torch.arange(1, 101)
    assert running[-1] > 0.45 > losses[-1]  # and at the next reset it drops to the loss itself


def plateau_counts_epochs_without_a_new_best() -> None:
    def reductions(losses: list[float], threshold: float) -> int:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=2, threshold=threshold
        )
        for loss in losses:
            scheduler.step(loss)
        return round(-torch.log10(torch.tensor(optimizer.param_groups[0]["lr"])).item())

    tiny = [1.0 - 0.001 * n for n in range(10)]
    assert reductions(tiny, 1e-4) == 0 < reductions(tiny, 0.02)
    assert reductions([1.0] * 10, 1e-4) == 3


def warm_restarts_jump_back() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == rates[4] == rates[8] == 1.0 and rates[3] < 0.2


def the_rate_is_in_the_group() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.1


def adams_steps_do_not_depend_on_the_scale() -> None:
    def step(scale: float, kind: type[torch.optim.Optimizer]) -> float:
        weight = nn.Parameter(torch.ones(1))
        optimizer = kind([weight], lr=0.1)  # type: ignore[call-arg]
        (scale * weight).sum().backward()
        optimizer.step()
        return float(1 - weight.detach())

    assert abs(step(1.0, torch.optim.Adam) - step(100.0, torch.optim.Adam)) < 1e-4
    assert step(100.0, torch.optim.SGD) > 90 * step(1.0, torch.optim.SGD)


def averaged_weights_are_less_noisy() -> None:
    weights = 1.0 + 0.1 * torch.randn(200, 50)  # the last steps around a minimum
    assert (weights.mean(0) - 1).abs().mean() < 0.2 * (weights[-1] - 1).abs().mean()


def dropout_before_batchnorm_shifts_the_variance() -> None:
    x = torch.randn(1000, 16)
    kept = F.dropout(x, 0.5, training=True)
    assert kept.var() > 1.5 * x.var()  # training; in evaluation the norm sees x itself


def sigmoid_with_mse_saturates() -> None:
    wrong = torch.tensor([10.0], requires_grad=True)
    F.mse_loss(wrong.sigmoid(), torch.zeros(1)).backward()
    assert wrong.grad is not None and wrong.grad.abs() < 1e-3
    wrong.grad = None
    F.binary_cross_entropy_with_logits(wrong, torch.zeros(1)).backward()
    assert wrong.grad is not None and wrong.grad.abs() > 0.9


def the_worst_losses_are_the_wrong_labels() -> None:
    x = torch.randn(200, 5)
    truth = (x.sum(1) > 0).long()
    labels = truth.clone()
    labels[:10] = 1 - labels[:10]
    model = nn.Linear(5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    worst = F.cross_entropy(model(x), labels, reduction="none").topk(10).indices
    assert int((worst < 10).sum()) >= 7


def equal_weights_stay_equal() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    _trained(model, torch.randn(16, 3), torch.randn(16, 1), 0.1, 20)
    first = model[0].weight
    assert torch.allclose(first, first[:1].expand_as(first))


def reset_parameters_draws_anew() -> None:
    layer = nn.Linear(3, 3)
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.weight)


def from_pretrained_freezes() -> None:
    vectors = torch.randn(4, 2)
    assert not nn.Embedding.from_pretrained(vectors).weight.requires_grad
    assert nn.Embedding.from_pretrained(vectors, freeze=False).weight.requires_grad


def a_dead_relu_gets_no_gradient() -> None:
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.bias, -100.0)
    torch.relu(layer(torch.randn(8, 3))).sum().backward()
    assert layer.weight.grad is not None and not layer.weight.grad.any()


def recurrence_forgets() -> None:
    x = torch.randn(300, 1, 4, requires_grad=True)
    nn.LSTM(4, 8)(x)[0][-1].sum().backward()
    assert x.grad is not None
    size = x.grad.flatten(1).norm(dim=1)
    assert size[0] < 1e-6 * size[-1]


def ignored_targets_do_not_count() -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, 255, 2, 255])
    kept = F.cross_entropy(logits[[0, 2]], targets[[0, 2]])
    assert torch.allclose(F.cross_entropy(logits, targets, ignore_index=255), kept)
    nothing = torch.full((4,), 255)
    assert F.cross_entropy(logits, nothing, ignore_index=255).isnan()


def masks_mean_two_things() -> None:
    q = torch.randn(1, 1, 2, 4)
    only_first = torch.tensor([[True, False], [True, False]])
    attended = F.scaled_dot_product_attention(q, q, q, attn_mask=only_first)
    assert torch.allclose(attended[0, 0, 1], q[0, 0, 0])  # True attends
    layer = nn.MultiheadAttention(4, 1, batch_first=True)
    _, weights = layer(q[0], q[0], q[0], attn_mask=only_first)
    assert torch.allclose(weights[0, :, 0], torch.zeros(2))  # True hides


def attention_ignores_order() -> None:
    layer = nn.MultiheadAttention(4, 1, batch_first=True)
    x = torch.randn(1, 5, 4)
    order = torch.tensor([3, 1, 4, 0, 2])
    out, moved = layer(x, x, x)[0], layer(x[:, order], x[:, order], x[:, order])[0]
    assert torch.allclose(out[:, order], moved, atol=1e-5)


def parameters_are_counted_once() -> None:
    shared = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(shared, shared)
    assert sum(p.numel() for p in model.parameters()) == 9
