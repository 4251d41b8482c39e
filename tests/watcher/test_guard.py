"""The guard keeps non-finite updates out of the model and leaves finite runs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fallline
from fallline.watcher import guard as guards
from fallline.watcher import ration
from fallline.watcher.finite import Plan
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


def all_finite(gradients: list[torch.Tensor]) -> bool:
    return Plan(gradients).norm_if_finite(gradients)[0]


def test_a_norm_is_that_of_the_last_step_while_a_bad_gradient_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known: list[float | None] = []
    with fallline.watch(model, optimizer, out=tmp_path / "run", guard="skip") as watch:
        guard = watch._session.guard
        # on an accelerator this is when a parameter that was spoilt after the last step is noticed
        explain = lambda *_: known.append(guard.recent)  # noqa: E731
        monkeypatch.setattr(watch._session.origin, "gradients_bad", explain)
        train(optimizer, model, poison=3)
        assert known == [pytest.approx(32.0**0.5)]
        assert guard.recent is None  # nothing is known of a step that was not made


def test_large_finite_numbers_are_finite() -> None:
    big = torch.full((4,), 3e38)
    assert Plan([big]).norm_if_finite([big])[0] is True
    assert all_finite([big, torch.zeros(0), torch.ones(2, dtype=torch.complex64)])
    assert not all_finite([big, torch.tensor([1.0, float("nan")])])
    assert not all_finite([torch.tensor([1.0, float("-inf")], dtype=torch.float16)])
    assert not all_finite([torch.sparse_coo_tensor([[1]], [float("nan")], (3,))])


class Wide(nn.Module):
    """More elements than are looked at whatever it costs; the last weight has no part in small gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 300)
        self.body = nn.Linear(300, 300)
        self.last = nn.Linear(300, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(self.first(x)))


def rationed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: float, poison: str, updates: int = 120
) -> tuple[list[int], list[bool]]:
    """Updates that were looked at as a whole, and whether each update was applied; a look takes a millisecond, by our clock."""
    clock, looks, applied = [0.0], [], []
    for name in ("process_time", "thread_time"):
        monkeypatch.setattr(guards.time, name, lambda: clock[0])
    original = Plan.norm_if_finite

    def look(self: Plan, gradients: list[torch.Tensor]) -> tuple[bool, float | None]:
        clock[0] += 0.001
        looks.append(len(applied))
        return original(self, gradients)

    monkeypatch.setattr(Plan, "norm_if_finite", look)
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with fallline.watch(model, optimizer, out=folder / "run", guard="skip"):
        for update in range(updates):
            clock[0] += step
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            if update == 100:
                model.get_parameter(poison).grad.view(-1)[5] = float("nan")
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            applied.append(
                not all(map(torch.equal, before, (p.detach() for p in model.parameters())))
            )
    return looks, applied


def test_all_gradients_are_looked_at_where_that_fits_half_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, applied = rationed(tmp_path, monkeypatch, 0.3, "body.weight")
    assert looks == list(range(120))
    assert [i for i, done in enumerate(applied) if not done] == [100]


def test_a_look_that_is_too_dear_is_made_now_and_then_and_a_few_gradients_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, applied = rationed(tmp_path, monkeypatch, 0.1, "first.weight")
    assert looks[: ration.FIRST] == list(range(ration.FIRST))
    later = [i for i in looks if i >= ration.FIRST and i != 100]
    # 1 ms is the budget, 0.25 ms are for the taps, 0.3 of the rest for looks: 0.22 ms an update, 1 ms a look
    assert 16 <= len(later) <= 22
    assert [i for i, done in enumerate(applied) if not done] == [100]


def test_after_ten_in_a_row_the_guard_steps_aside_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_on(limit: str) -> tuple[nn.Module, object]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"out": tmp_path / limit, "guard": "skip", "guard_limit": limit}
        with fallline.watch(model, optimizer, **options) as watch:
            for _ in range(12):
                optimizer.zero_grad()
                (model(torch.ones(2, 3)).sum() * float("nan")).backward()
                optimizer.step()
                finite = all(p.isfinite().all() for p in model.parameters())
                assert finite or watch._session.guard.aside == 10
        return model, watch._session.guard

    model, guard = train_on("aside")
    assert not any(p.isfinite().any() for p in model.parameters()) and guard.skipped == 10
    assert "10 updates in a row were NaN or Inf" in capsys.readouterr().err
    with pytest.raises(GuardStop, match="10 updates in a row"):
        train_on("stop")
    model, guard = train_on("none")
    assert all(p.isfinite().all() for p in model.parameters()) and guard.skipped == 12
