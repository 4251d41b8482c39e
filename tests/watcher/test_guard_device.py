"""The guard on an accelerator: the answer stays on the device. A CPU stands in for one here; `test_guard_gpu` has a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fallline
from fallline.watcher import duty, measures, pace, rest, trail, updates
from fallline.watcher import guard as guards
from fallline.watcher.guard import GuardStop
from fallline.watcher.later import Number, send, sent_numbers
from fallline.watcher.limit import Limit
from fallline.watcher.on_device import Look, values_of, wipe
from fallline.watcher.recorder import as_it_is

NAN = float("nan")


def test_one_value_that_is_not_finite_sets_the_flag_and_large_ones_do_not() -> None:
    fine = [torch.full((3,), 3e38), torch.ones(2, 2).half(), torch.ones(2, dtype=torch.complex64)]
    assert Look(fine).flag == 0
    for bad in (NAN, float("inf")):
        assert Look([*fine, torch.tensor([1.0, bad])]).flag == 1
    assert Look([torch.sparse_coo_tensor([[1]], [NAN], (3,))]).flag == 1
    assert Look([torch.zeros(0)]).flag == 0


def test_gradients_are_wiped_where_the_flag_is_set_and_untouched_where_not() -> None:
    def gradients() -> list[Tensor]:
        sparse = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (3,))
        return [torch.tensor([1.0, NAN]), torch.ones(2, dtype=torch.complex64), sparse]

    kept = gradients()
    wipe([values_of(g) for g in kept], torch.zeros(()))
    assert kept[0][0] == 1 and kept[1][0] == 1 and kept[2].to_dense()[1] == 5
    gone = gradients()
    versions = [g._version for g in gone[:2]]
    wipe([values_of(g) for g in gone], torch.ones(()))
    assert all(not g.to_dense().any() for g in gone)
    assert versions == [g._version for g in gone[:2]]  # a graph that has kept them does not mind


def test_numbers_are_sent_together_and_read_later() -> None:
    loss, norm = sent_numbers([torch.tensor(1.5), torch.tensor([2.0])])
    assert loss.here() and (float(loss), float(norm)) == (1.5, 2.0)
    assert send(torch.ones(2, 2)).values() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    "bad, reached",
    (
        (range(9), False),
        (range(10), True),
        ([*range(9), *range(10, 19)], True),  # 18 of the last 200
        (range(0, 2000, 20), False),  # one of twenty
        (range(0, 2000, 19), True),
    ),
)
def test_the_limit(bad: Any, reached: bool) -> None:
    limit = Limit()
    assert any([limit.reached(0, index) for index in bad]) is reached


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that the guard takes for an accelerator."""

    def sent(values: list[Any]) -> list[Any]:
        tensors = {i: v for i, v in enumerate(values) if isinstance(v, Tensor)}
        numbers = dict(zip(tensors, sent_numbers(list(tensors.values())), strict=True))
        return [numbers.get(i, as_it_is(v)) for i, v in enumerate(values)]

    monkeypatch.setattr(guards, "_is_cpu", lambda gradient: False)
    monkeypatch.setattr(updates, "as_they_are", sent)


def train(
    folder: Path, bad: range, updates: int = 100, optimizer: str = "SGD", **options: Any
) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    with fallline.watch(model, steps, out=folder / "run", **{"guard": "skip"} | options) as watch:
        for i in range(updates):
            steps.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            if i in bad:
                model.weight.grad[0, 0] = NAN
            steps.step()
    return watch, model


def rows(watch: Any) -> list[Any]:
    return watch.series.tracks[0].rows


@pytest.mark.parametrize("optimizer", ("SGD", "AdamW"))
@pytest.mark.parametrize("bad", (range(3, 5), range(80, 82)))  # waited for, and not
def test_a_bad_update_is_wiped_and_the_host_learns_it_later(
    tmp_path: Path, device: None, optimizer: str, bad: range
) -> None:
    watch, model = train(tmp_path, bad, optimizer=optimizer)
    assert all(p.isfinite().all() for p in model.parameters())
    assert watch._session.guard.skipped == 2
    assert [r.index for r in rows(watch) if r.skipped] == list(bad)
    found = next(f for f in watch.findings if f.code == "FL621")
    assert found.evidence["step"] == bad[0] and "momentum and weight decay" in found.message


def test_finite_updates_are_what_they_are_without_us(tmp_path: Path, device: None) -> None:
    watch, watched = train(tmp_path, range(0), optimizer="AdamW")
    torch.manual_seed(0)
    bare = nn.Linear(3, 2)
    steps = torch.optim.AdamW(bare.parameters(), lr=0.1)
    for _ in range(100):
        steps.zero_grad()
        bare(torch.ones(2, 3)).sum().backward()
        steps.step()
    pairs = zip(watched.parameters(), bare.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not any(r.skipped for r in rows(watch))
    assert not any(isinstance(r.loss, Number) or r.loss is None for r in rows(watch))


def test_exact_waits_and_leaves_the_update_out(tmp_path: Path, device: None) -> None:
    watch, model = train(tmp_path, range(99, 100), optimizer="AdamW", guard="exact")
    assert watch._session.guard.skipped == 1
    assert watch._session.guard._checks == 0
    assert model.weight.grad[0, 0].isnan()


def test_a_late_answer_counts_a_fixed_number_of_updates_later(
    tmp_path: Path, device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, model = train(tmp_path, range(60, 1000), updates=200)
    guard = watch._session.guard
    assert guard.aside == 70 + guards.LAG and not model.weight.isfinite().all()
    assert "steps aside" in capsys.readouterr().err
    with pytest.raises(GuardStop, match="10 updates in a row"):
        train(tmp_path / "stop", range(60, 1000), updates=200, guard_limit="stop")
    _, model = train(tmp_path / "none", range(60, 1000), updates=200, guard_limit="none")
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("limit", ("stop", "aside"))
def test_a_late_answer_about_updates_at_rest_counts_as_soon(
    tmp_path: Path, device: None, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Ranks rest at different times, and have to do the same."""
    monkeypatch.setattr(duty, "ALLOWANCE", 0.0)  # rests as soon as it can
    monkeypatch.setattr(pace, "FIRST_REST", 4_000)
    monkeypatch.setattr(rest.Rest, "_every", lambda *_: 1)  # as on a device: before every step
    for part in (trail.Trail, measures.Measures):  # nobody waits for an update
        monkeypatch.setattr(part, "awaits", lambda *_: None)

    def watched() -> Any:
        return train(tmp_path, range(120, 4_000), 400, guard_limit=limit)[0]

    if limit == "stop":
        with pytest.raises(GuardStop, match="10 updates in a row"):
            watched()
    else:
        watch = watched()
        assert len(rows(watch)) < 300
        assert watch._session.guard.aside == 130 + guards.LAG
