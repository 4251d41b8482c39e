"""Short updates are watched in stretches, so that watching stays within its budget; what is seen is still one sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fallline
from fallline.events import Batch, Event, Forward, Step
from fallline.taps.tap import switch
from fallline.watcher import duty, pace, ration, rest
from fallline.watcher.guard import Guard
from fallline.watcher.progress import Progress
from fallline.watcher.recording import Recording

torch.set_num_threads(1)


class Clock:
    """A CPU on which an update takes a millisecond, and watching it a share more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: float) -> None:
        self.now, self.costs = 0.0, costs
        self.watched: list[bool] = []
        monkeypatch.setattr(pace.time, "thread_time", lambda: self.now)
        monkeypatch.setattr(rest, "thread_time", lambda: 0.0)  # a look takes no time
        monkeypatch.setattr(Recording, "took", lambda recording, seconds: None)  # nor our threads
        monkeypatch.setattr(duty, "ALLOWANCE", 0.1)

    def update(self) -> None:
        self.watched.append(not switch.quiet)
        self.now += 0.001 * (1 + self.costs * (not switch.quiet))


def watched(folder: Path, run: Callable[[], None]) -> Any:
    with fallline.watch(out=folder / "run", guard="skip") as watch:
        run()
        assert watch._session.failed is None
    assert not switch.quiet
    return watch


def simple(clock: Clock, updates: int, bad: int = -1) -> tuple[nn.Module, Callable[[], None]]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> None:
        for i in range(updates):
            clock.update()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).mean().backward()
            if i == bad:
                model.weight.grad.fill_(float("nan"))
            optimizer.step()

    return model, run


def test_so_many_updates_are_watched_as_the_budget_pays_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, costs=0.2)
    watch = watched(tmp_path, simple(clock, 2500)[1])
    assert all(clock.watched[:160])
    later = clock.watched[clock.watched.index(False) :]
    # 1 % of the time, at 20 % a watched update, less what pays for the first ones: little more than what has to be seen
    assert 0.01 < sum(later) / len(later) < 0.04
    session = watch._session
    assert session.progress.steps == session.log.updates == 2500
    track = watch.series.tracks[0]
    assert len(track.rows) == sum(clock.watched) and track.totals["updates"] == 2500
    assert [r.index for r in track.rows] == [i for i, seen in enumerate(clock.watched) if seen]
    assert not watch.findings


def test_every_update_is_watched_where_that_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, costs=0.002)
    watched(tmp_path, simple(clock, 800)[1])
    assert clock.watched.count(False) == pace.FIRST_REST  # to measure what an update takes without


def test_at_rest_a_bad_update_is_kept_out_and_those_that_follow_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, costs=0.2)
    model, run = simple(clock, 1000, bad=900)
    watch = watched(tmp_path, run)
    assert not clock.watched[900] and all(clock.watched[901:920])
    assert all(p.isfinite().all() for p in model.parameters())
    assert watch.series.tracks[0].totals["skipped"] == 1
    (found,) = watch.findings
    assert found.code == "FL621" and found.evidence["step"] == 900
    assert "this one was not" in found.message


def test_ranks_look_at_all_gradients_before_the_same_updates_watched_or_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they decide like those that watch just then, without asking them."""
    clock, looked = Clock(monkeypatch, costs=0.2), []
    look = Guard.look

    def seen(guard: Guard, optimizer: Any, index: int, held: int) -> None:
        looked.append(index)
        look(guard, optimizer, index, held)

    monkeypatch.setattr(Guard, "look", seen)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with fallline.watch(out=tmp_path / "run", guard="skip") as watch:
        for i in range(1200):
            clock.update()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).mean().backward()
            optimizer.step()
            watch._session.recording.world = 2 if i < 1199 else 1
    assert looked == [i for i in range(1200) if i < ration.FIRST or i % ration.ALIKE == 0]
    assert {clock.watched[i] for i in looked} == {True, False}


def test_ranks_at_rest_see_what_clipping_leaves_of_an_infinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It divides by an infinite norm: a NaN where the infinity was, zeros in the few tensors that are looked at."""
    clock = Clock(monkeypatch, costs=0.2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with fallline.watch(out=tmp_path / "run", guard="skip") as watch:
        for i in range(1000):
            clock.update()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).mean().backward()
            if i == 907:
                middle = model.get_parameter("1.weight").grad
                assert middle is not None and i % ration.ALIKE != 0
                middle[0, 0] = float("inf")
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            watch._session.recording.world = 2 if i < 999 else 1
    assert not clock.watched[907]
    assert all(p.isfinite().all() for p in model.parameters())


def test_ranks_at_rest_keep_bad_updates_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, costs=0.2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(watch: Any) -> None:
        for i in range(1200):
            clock.update()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).pow(2).mean().backward()
            if i in (907, 1100):
                assert model.bias.grad is not None
                model.bias.grad.fill_(float("nan"))
            optimizer.step()
            if i == 0:
                watch._session.recording.world = 2
        watch._session.recording.world = 1

    with fallline.watch(out=tmp_path / "run", guard="skip") as watch:
        train(watch)
    assert not clock.watched[907] and not clock.watched[1100]
    assert watch._session.guard.skipped == 2
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_rest_ends_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, costs=0.2)

    def run() -> None:
        one, other = nn.Linear(4, 1), nn.Linear(4, 1)
        first = torch.optim.SGD(one.parameters(), lr=1e-3)
        second = torch.optim.SGD(other.parameters(), lr=1e-3)
        for _ in range(800):
            first.zero_grad()
            one(torch.ones(2, 4)).pow(2).mean().backward()
            second.zero_grad()
            other(torch.ones(2, 4)).pow(2).mean().backward()
            first.step()
            clock.update()
            second.step()
            clock.update()

    watch = watched(tmp_path, run)
    assert clock.watched.count(False) > 600
    assert not watch.findings
    kinds = [type(e) for e in watch._session.log.events]
    assert kinds.count(Step) == kinds.count(Forward)


def test_new_parameters_end_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, costs=0.5)

    def run() -> None:
        simple(clock, 900)[1]()
        assert switch.quiet
        simple(clock, 20)[1]()

    watch = watched(tmp_path, run)
    assert not clock.watched[899] and all(clock.watched[900:])
    assert [t.totals["updates"] for t in watch.series.tracks] == [900, 20]


def test_epochs_and_batches_are_known_after_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, costs=0.2)

    def run() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4000)
        data = torch.utils.data.TensorDataset(torch.randn(70, 4))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        for _ in range(40):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
                scheduler.step()
                clock.update()

    watch = watched(tmp_path, run)
    assert clock.watched.count(False) > 600
    assert not watch.findings
    events: list[Event] = watch._session.log.events
    batches = [e for e in events if isinstance(e, Batch)]
    assert any(e.last for e in batches) and any(e.last is False for e in batches[-32:])


def test_what_our_threads_take_is_paid_back_before_more_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, clock, beside = Progress(), [0.0], [0.0]
    monkeypatch.setattr(pace.time, "thread_time", lambda: clock[0])
    kept = pace.Pace(0.01, progress, lambda: beside[0])

    def stretch(updates: int, seconds: float) -> None:
        kept.begin()
        progress.steps += updates
        clock[0] += updates * seconds

    def watched() -> int:
        stretch(pace.STRETCH, 0.0011)
        return kept.after_watching(guess=0.001, at_rest=0.0)[1]

    def rested(updates: int) -> None:
        stretch(updates, 0.001)
        kept.after_resting()

    rested(watched())
    first = watched()
    assert first == pytest.approx(
        9 * pace.STRETCH, abs=1
    )  # 0.1 ms each, of 0.01 that an update may
    beside[0] += 0.01
    rested(first)
    second = watched()
    assert second == pytest.approx(first + 1000, abs=2)
    rested(100)  # somebody had to see an update
    assert watched() == pytest.approx(second - 100 + first, abs=3)
    rested(5000)
    beside[0] += 10.0
    assert watched() == pace.MOST_REST


def test_the_first_updates_are_paid_back_beside_what_is_watched_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress, clock = Progress(), [0.0]
    monkeypatch.setattr(pace.time, "thread_time", lambda: clock[0])
    kept = pace.Pace(0.01, progress, lambda: 0.0)

    def updates(number: int, seconds: float) -> None:
        progress.steps += number
        clock[0] += number * seconds

    def watched() -> int:
        kept.begin()
        updates(pace.STRETCH, 0.0011)
        return kept.after_watching(guess=0.001, at_rest=0.0)[1]

    def rested(number: int) -> None:
        kept.begin()
        updates(number, 0.001)
        kept.after_resting()

    kept.starts()
    updates(200, 0.0012)  # 40 ms, and 3.2 more in the first stretch; the budget has paid 3 of them
    rested(watched())
    less = watched()
    may = 0.01e-3 * (1 - pace.FOR_FIRST)
    assert less == pytest.approx((0.1e-3 - may) * pace.STRETCH / may, abs=1)
    rested(4000)
    assert watched() == pytest.approx(less, abs=1)
    rested(480)  # 9 us each: 40.3 of 40.2 ms
    assert watched() < less / 2
