"""The guard keeps non-finite updates out of the model and leaves finite runs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fallline
from fallline.watcher.finite import Plan, all_finite
from fallline.watcher.guard import GuardStop

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def train(optimizer: torch.optim.Optimizer, model: nn.Module, poison: int) -> None:
    for i in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        if i == poison:
            next(model.parameters()).grad[0, 0] = float("nan")
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_update_is_not_applied(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS[name](model.parameters())
    with fallline.watch(model, optimizer, out=tmp_path / "run", guard="skip") as watch:
        train(optimizer, model, poison=3)
    assert all(p.isfinite().all() for p in model.parameters())
    assert next(model.parameters()).grad[0, 0].isnan()  # the gradients are still there to look at
    assert watch._session.guard.skipped == 1
    # as if the update had not been made
    torch.manual_seed(0)
    other = nn.Linear(3, 2)
    steps = OPTIMIZERS[name](other.parameters())
    for _ in range(3):
        steps.zero_grad()
        other(torch.ones(2, 3)).sum().backward()
        steps.step()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_stop_raises_and_says_why(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(GuardStop, match="update 1"),
        fallline.watch(model, optimizer, out=tmp_path / "run", guard="stop"),
    ):
        train(optimizer, model, poison=1)
    assert all(p.isfinite().all() for p in model.parameters())


def test_off_leaves_it_alone(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fallline.watch(model, optimizer, out=tmp_path / "run", guard="off"):
        train(optimizer, model, poison=1)
    assert not all(p.isfinite().all() for p in model.parameters())


def test_a_closure_is_guarded_too(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        next(model.parameters()).grad.fill_(float("inf"))
        return loss

    with fallline.watch(model, optimizer, out=tmp_path / "run", guard="skip") as watch:
        optimizer.step(closure)
    assert all(p.isfinite().all() for p in model.parameters())
    assert watch._session.guard.skipped == 1


def test_large_finite_numbers_are_finite() -> None:
    big = torch.full((4,), 3e38)
    assert Plan([big]).norm_if_finite([big])[0] is True
    assert all_finite([big, torch.zeros(0), torch.ones(2, dtype=torch.complex64)])
    assert not all_finite([big, torch.tensor([1.0, float("nan")])])
    assert not all_finite([torch.tensor([1.0, float("-inf")], dtype=torch.float16)])
    assert not all_finite([torch.sparse_coo_tensor([[1]], [float("nan")], (3,))])
