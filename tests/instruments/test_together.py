"""An instrument and the watcher hear the same calls: both can follow one run, and neither disturbs the other."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import fallline  # noqa: E402
from fallline.instruments import measure_memory, measure_time  # noqa: E402
from fallline.instruments.script import Observer, run_until  # noqa: E402


def train(updates: int = 8) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(updates):
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()  # never cleared: FL106
        optimizer.step()
        losses.append(loss.item())
    return losses


class Calls(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.losses: list[float] = []

    def forward_begins(self, model: nn.Module, args: object, kwargs: object) -> None:
        self.seen.append("forward")

    def backward_begins(self, loss: torch.Tensor) -> None:
        self.seen.append("backward")
        self.losses.append(loss.item())

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self.seen.append("step")


def test_both_see_the_whole_run_and_the_numbers_stay(tmp_path: Path) -> None:
    alone = train()
    methods = torch.Tensor.backward, nn.Module.__call__, torch.optim.Optimizer.zero_grad
    calls = Calls()
    with fallline.watch(out=tmp_path / "run") as watch:
        ran = run_until(train, calls, updates=100)
    assert ran.error is None and ran.updates == 8
    assert calls.seen == ["forward", "backward", "step"] * 8
    assert calls.losses == alone
    assert [f.code for f in watch.findings] == ["FL106"]
    assert watch.series is not None
    assert [row.loss for track in watch.series.tracks for row in track.rows] == pytest.approx(alone)
    assert methods == (torch.Tensor.backward, nn.Module.__call__, torch.optim.Optimizer.zero_grad)


def test_a_watcher_that_begins_and_ends_within_a_measurement(tmp_path: Path) -> None:
    """Who comes later and goes first takes away no patch that the other needs."""
    calls = Calls()

    def both() -> None:
        train(3)
        with fallline.watch(out=tmp_path / "run") as watch:
            train(6)
        assert [f.code for f in watch.findings] == ["FL106"]
        train(3)

    ran = run_until(both, calls, updates=100)
    assert ran.error is None, ran.error
    assert calls.seen == ["forward", "backward", "step"] * 12


class Replays(Observer):
    """Runs the model again in the middle of an update, as the precision probe does."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.again = 0

    def forward_begins(self, model: nn.Module, args: object, kwargs: object) -> None:
        self.model = model

    def backward_begins(self, loss: torch.Tensor) -> None:
        assert self.model is not None
        self.model(torch.zeros(2, 4)).sum()
        self.again += 1


def test_what_an_instrument_computes_is_not_part_of_the_run(tmp_path: Path) -> None:
    replays, calls = Replays(), Calls()
    with fallline.watch(out=tmp_path / "run") as watch:
        run_until(lambda: run_until(train, calls, updates=100), replays, updates=100)
    assert replays.again == 8
    assert calls.seen == ["forward", "backward", "step"] * 8
    assert [f.code for f in watch.findings] == ["FL106"]


@pytest.mark.parametrize("measure", [measure_time, measure_memory])
def test_a_measurement_inside_a_watched_run(tmp_path: Path, measure: object) -> None:
    with fallline.watch(out=tmp_path / "run") as watch:
        measure(train, updates=5)  # type: ignore[operator]
    assert [f.code for f in watch.findings] == ["FL106"]
