"""What curves show and why, as claims say (claims/two-curves.md and others): each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import torch
from torch import nn


def a_lower_rate_settles() -> None:
    """At a constant rate the noise of single samples stays in the loss; a lower rate takes it out."""
    weight = nn.Parameter(torch.zeros(1))
    targets = torch.randn(4000) + 3.0
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def spread(part: torch.Tensor) -> float:
        seen = []
        for target in part:
            optimizer.zero_grad()
            ((weight - target) ** 2).sum().backward()
            optimizer.step()
            seen.append(float((weight.detach() - 3.0) ** 2))
        return sum(seen[len(seen) // 2 :]) / (len(seen) - len(seen) // 2)

    high = spread(targets[:2000])
    optimizer.param_groups[0]["lr"] = 0.005
    assert spread(targets[2000:]) < 0.1 * high


def smaller_batches_take_more_updates() -> None:
    """Same samples, same rate: the larger batch has travelled less after one epoch."""
    x = torch.randn(512, 4)
    y = x.sum(1, keepdim=True)

    def after_an_epoch(batch: int) -> tuple[int, float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        updates = 0
        for i in range(0, len(x), batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[i : i + batch]), y[i : i + batch]).backward()
            optimizer.step()
            updates += 1
        return updates, nn.functional.mse_loss(model(x), y).item()

    few, far = after_an_epoch(256), after_an_epoch(16)
    assert far[0] == 16 * few[0] and far[1] < few[1]


def onecycle_sets_its_own_rates() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=7.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    rates = [scheduler.get_last_lr()[0]]
    for _ in range(9):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert abs(rates[0] - 1 / 25) < 1e-9 and abs(max(rates) - 1.0) < 1e-9
    assert abs(rates[-1] - 1 / 25 / 1e4) < 1e-9


def plateau_compares_with_the_best_ever() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    for loss in (1.0, 0.1, 5.0, 4.0, 3.0, 2.0):  # a lucky value, a spike, then a steady fall
        scheduler.step(loss)
    assert optimizer.param_groups[0]["lr"] < 1.0


def one_optimizer_with_groups_equals_two() -> None:
    def trained(split: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        a, b = nn.Linear(3, 3), nn.Linear(3, 1)
        groups = [{"params": a.parameters(), "lr": 1e-2}, {"params": b.parameters(), "lr": 1e-1}]
        optimizers = (
            [torch.optim.Adam([g]) for g in groups] if split else [torch.optim.Adam(groups)]
        )
        for _ in range(5):
            b(a(torch.ones(2, 3))).pow(2).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [*a.parameters(), *b.parameters()]

    assert all(torch.equal(p, q) for p, q in zip(trained(True), trained(False), strict=True))


def both_zero_grads_clear() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    head = torch.optim.SGD(model[1].parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    head.zero_grad()
    assert model[1].weight.grad is None and model[0].weight.grad is not None
    model.zero_grad()
    assert model[0].weight.grad is None


def decay_is_not_in_the_loss() -> None:
    weight = nn.Parameter(torch.full((3,), 2.0))
    optimizer = torch.optim.SGD([weight], lr=0.1, weight_decay=0.5)
    loss = (weight * 0).sum()
    loss.backward()
    optimizer.step()
    assert loss.item() == 0.0 and bool((weight < 2.0).all())
