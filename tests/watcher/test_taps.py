"""Taps: what they read off a loss, how events stay bounded, and that nothing stays behind when they are removed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fallline
from fallline.errors import UsageError
from fallline.events import Backward, Clip, Event, Step
from fallline.location import Location
from fallline.watcher.log import KEPT_AFTER, KEPT_UPDATES, MOST_EVENTS, EventLog
from fallline.watcher.loss import facts_of
from fallline.watcher.objects import Objects

X = torch.randn(6, 4, requires_grad=True)
TARGET = torch.tensor([0, 1, 2, 3, 0, 0])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (X.mean(), {"divided": False, "reduction": "mean"}),
        (X.mean() / 4, {"divided": True, "divisor": 4.0, "reduction": "mean"}),
        (X.mean() * 0.25, {"divided": True, "divisor": 4.0}),
        (X.mean() * 2, {"divided": False}),
        (X.sum(), {"divided": False, "reduction": "sum"}),
        (X.sum() / 24, {"divided": False, "reduction": "mean"}),
        (X.sum() / 96, {"divided": True, "reduction": "sum"}),
        ((X.mean() + X.pow(2).mean()) / 2, {"divided": True, "divisor": 2.0}),
        (X.mean() + 0.1 * X.pow(2).mean(), {"divided": True, "divisor": None}),
        (F.cross_entropy(X, TARGET), {"divided": False, "reduction": "mean"}),
        (F.cross_entropy(X, TARGET, reduction="sum"), {"reduction": "sum"}),
        (F.cross_entropy(X, TARGET, ignore_index=0), {"reduction": "mean", "counted": (3, True)}),
        (
            F.cross_entropy(X, TARGET, ignore_index=0, reduction="sum") / 3,
            {"divided": False, "counted": (3, True)},
        ),
        (-X.mean().view(1).squeeze() / 2, {"divided": True, "divisor": 2.0, "reduction": "mean"}),
    ],
)
def test_a_loss_says_how_it_was_made(loss: torch.Tensor, expected: dict[str, object]) -> None:
    facts = facts_of(loss, [])
    assert {k: facts.get(k) for k in expected} == expected


def test_a_scaled_loss_is_known_by_its_scale() -> None:
    scaler = torch.amp.GradScaler("cpu")
    loss = scaler.scale(X.mean() / 4)
    facts = facts_of(loss, [scaler._scale])
    assert (facts["scaled"], facts["divided"], facts["divisor"]) == (True, True, 4.0)
    assert facts_of(X.mean() * 65536.0, [scaler._scale])["scaled"] is False


def event(kind: type[Event], line: int, **facts: object) -> Event:
    return kind(Location("t.py", line), **facts)


def test_a_million_like_updates_stay_few_events_and_a_new_one_is_kept() -> None:
    log = EventLog()
    for i in range(20_000):
        log.add(event(Backward, 1))
        if i == 15_000:
            log.add(event(Clip, 2))
        log.add(event(Step, 3))
    assert len(log.events) <= 2 * (KEPT_UPDATES + KEPT_AFTER) + 8
    clip = next(i for i, e in enumerate(log.events) if isinstance(e, Clip))
    # the update before the new one is before it
    assert [type(e) for e in log.events[clip - 3 : clip + 2]] == [
        Backward, Step, Backward, Clip, Step,
    ]  # fmt: skip


def test_a_program_that_never_steps_stays_bounded() -> None:
    log = EventLog()
    for _ in range(50_000):
        log.add(event(Backward, 1))
    assert len(log.events) <= MOST_EVENTS + 2_001
    assert log.cut


def test_parameter_sets_share_names_exactly_where_they_share_parameters() -> None:
    objects = Objects()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    objects.model(model)
    head = torch.optim.SGD(model[1].parameters(), lr=0.1)
    objects.optimizer(head)
    whole, first = objects.parameters(model.parameters()), objects.parameters(model[0].parameters())
    names = objects.named_sets({whole, first, objects.optimizer_sets["optimizer#1"]})
    stepped = names[objects.optimizer_sets["optimizer#1"]]
    assert "model#1" in names[whole]
    assert names[first].isdisjoint(stepped)
    assert stepped < names[whole]


def test_watching_leaves_torch_as_it_was_and_keeps_nothing_alive(tmp_path: Path) -> None:
    before = (
        torch.Tensor.backward, nn.Module.__call__, torch.nn.utils.clip_grad_norm_, torch.optim.Optimizer.zero_grad,
        "grad" in torch.Tensor.__dict__, "item" in torch.Tensor.__dict__,
    )  # fmt: skip
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fallline.watch(model, optimizer, out=tmp_path / "run") as watch:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
    after = (
        torch.Tensor.backward, nn.Module.__call__, torch.nn.utils.clip_grad_norm_, torch.optim.Optimizer.zero_grad,
        "grad" in torch.Tensor.__dict__, "item" in torch.Tensor.__dict__,
    )  # fmt: skip
    assert before == after
    assert watch.findings == []
    assert watch.folder == tmp_path / "run"
    reference = weakref.ref(model)
    del model, optimizer
    watch._session.origin.capture = None
    gc.collect()
    assert reference() is None


def test_watch_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="models and optimizers, not int"):
        fallline.watch(3)
    with pytest.raises(UsageError, match="'skip', 'exact', 'stop' or 'off'"):
        fallline.watch(guard="maybe")
    with pytest.raises(UsageError, match="percentage"):
        fallline.watch(budget=-1)


def test_names_imported_before_watching_are_seen_too(tmp_path: Path) -> None:
    from torch.nn.utils import clip_grad_norm_

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope = {"clip": clip_grad_norm_, "model": model, "optimizer": optimizer, "torch": torch}
    module = type(torch)("a_script_imported_earlier")
    module.__dict__.update(scope)
    import sys

    sys.modules[module.__name__] = module
    try:
        with fallline.watch(model, optimizer, out=tmp_path / "run") as watch:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, 3)).sum().backward()
                optimizer.step()
                module.clip(model.parameters(), 1.0)
    finally:
        del sys.modules[module.__name__]
    assert [f.code for f in watch.findings] == ["FL101"]
