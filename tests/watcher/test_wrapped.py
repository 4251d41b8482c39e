"""Wrapped and compiled models, and steps with a closure, are only compared once they are well known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import fallline
from fallline.events import Event, Step
from fallline.watcher.emit import Emitter

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    events: list[Event] = []
    record = Emitter.record

    def counted(self: Emitter, event: Event) -> None:
        events.append(event)
        record(self, event)

    monkeypatch.setattr(Emitter, "record", counted)
    return events


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = small()
    fully_shard(model)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ddp": lambda: nn.parallel.DistributedDataParallel(small()),
    "fsdp2": sharded,
    "compiled": lambda: torch.compile(small(), backend="eager"),
    "closure": small,
}


def train(model: nn.Module, updates: int, closure: bool, odd: int = -1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(2, 4)

    def gradients() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for number in range(updates):
        if number == odd:
            model.require_backward_grad_sync = False  # as no_sync does
        if closure:
            optimizer.step(gradients)
        else:
            gradients()
            optimizer.step()
        if number == odd:
            model.require_backward_grad_sync = True


def watched(folder: Path, run: Callable[[], None]) -> Any:
    with fallline.watch(out=folder / "run", guard="skip") as watch:
        run()
        assert watch._session.failed is None
    return watch


@pytest.mark.parametrize("name", MODELS)
def test_they_reach_the_cheap_path(
    name: str, tmp_path: Path, group: None, recorded: list[Event]
) -> None:
    model = MODELS[name]()
    watch = watched(tmp_path, lambda: train(model, 220, name == "closure"))
    steps = sum(isinstance(event, Step) for event in recorded)
    assert 48 <= steps <= 58
    assert watch._session.progress.steps == 220
    assert len(watch.series.tracks[0].rows) == 220


def test_a_backward_that_does_not_all_reduce_is_noticed_late(
    tmp_path: Path, group: None, recorded: list[Event]
) -> None:
    model = MODELS["ddp"]()
    watched(tmp_path, lambda: train(model, 220, False, odd=200))
    assert [e.at.line for e in recorded if getattr(e, "sync", None) is False]


# A framework's optimizer that passes on what the loop calls, as those of Accelerate and Fabric do.
PASSES_ON = """
class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    @property
    def param_groups(self):
        return self.optimizer.param_groups
    def step(self):
        self._step(closure=lambda: None)  # as Lightning's does
    def _step(self, closure):
        self.optimizer.step(closure)
    def zero_grad(self):
        self.optimizer.zero_grad()

class Trainer:
    def __init__(self, optimizer):
        self.optimizer = Wrapper(optimizer)
    def train_batch(self, loss):
        loss.backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize(("by_hand", "found"), [(True, ["FL106"]), (False, [])])
def test_a_step_that_a_framework_passes_on_is_the_loops_own(
    tmp_path: Path, by_hand: bool, found: list[str]
) -> None:
    framework: dict[str, Any] = {}
    exec(compile(PASSES_ON, "/x/site-packages/accelerate/optimizer.py", "exec"), framework)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wrapper, trainer = framework["Wrapper"](optimizer), framework["Trainer"](optimizer)
    with fallline.watch(out=tmp_path / "run") as watch:
        for _ in range(12):
            loss = model(torch.ones(2, 4)).pow(2).mean()
            if by_hand:
                loss.backward()
                wrapper.step()
            else:  # it may clear by itself, where nobody sees it
                trainer.train_batch(loss)
    assert [f.code for f in watch.findings] == found
