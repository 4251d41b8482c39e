"""The guard on a CUDA device: nobody waits, bad updates stay out, finite ones keep their bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fallline
from fallline.watcher import duty, on_device
from fallline.watcher.guard import LAG, GuardStop

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "one by one": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}
BAD = 90


@pytest.fixture(autouse=True)
def every_update_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ones a budget leaves out, on a fast or a busy machine, is not what these test; no budget allows all of them."""
    monkeypatch.setattr(duty, "ALLOWANCE", math.inf)


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()


def loop(model: nn.Module, optimizer: Any, updates: int, bad: Any = (), wiped: Any = ()) -> None:
    x = torch.randn(16, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    for i in range(updates):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if i in bad:
            model[0].bias.grad.fill_(float("inf"))
        if i in wiped:
            for p in model.parameters():
                p.grad.zero_()
        optimizer.step()


def watched(
    folder: Path,
    name: str,
    updates: int,
    bad: Any = (),
    waits_are_errors: bool = False,
    **options: Any,
) -> Any:
    model = make()
    optimizer = OPTIMIZERS[name](model.parameters())
    options = {"guard": "skip"} | options
    with fallline.watch(model, optimizer, out=folder / "run", **options) as watch:
        torch.cuda.set_sync_debug_mode("error" if waits_are_errors else "default")
        try:
            loop(model, optimizer, updates, bad)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert watch._session.failed is None
    return watch, model


def bare(name: str, updates: int, **how: Any) -> nn.Module:
    model = make()
    loop(model, OPTIMIZERS[name](model.parameters()), updates, **how)
    return model


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("triton", (True, False))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_run_never_waits_and_keeps_its_bits(
    name: str, triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not triton:
        monkeypatch.setattr(on_device, "has_kernel", lambda tensor: False)
    expected = bare(name, 150)
    watch, model = watched(tmp_path, name, 150, waits_are_errors=True)
    assert same(model, expected)
    rows = watch.series.tracks[0].rows
    assert len(rows) == 150 and all(r.loss is not None and not r.skipped for r in rows)


@pytest.mark.parametrize("triton", (True, False))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_update_has_no_gradients(
    name: str, triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not triton:
        monkeypatch.setattr(on_device, "has_kernel", lambda tensor: False)
    watch, model = watched(tmp_path, name, 150, bad=(BAD,))
    if name != "fused":  # which leaves it out altogether
        assert same(model, bare(name, 150, wiped=(BAD,)))
    assert all(p.isfinite().all() for p in model.parameters())
    assert [r.index for r in watch.series.tracks[0].rows if r.skipped] == [BAD]
    assert watch._session.guard.skipped == 1
    assert {f.code for f in watch.findings} >= {"FL621"}


def test_a_bad_update_is_noticed_also_where_waiting_is_an_error(tmp_path: Path) -> None:
    bad = (BAD, BAD + 20)
    watch, _ = watched(tmp_path, "adamw", 150, bad, waits_are_errors=True)
    assert watch._session.guard.skipped == 2


def test_exact_leaves_the_update_out(tmp_path: Path) -> None:
    watch, model = watched(tmp_path, "adamw", 121, bad=(120,), guard="exact")
    assert same(model, bare("adamw", 120)) and watch._session.guard.skipped == 1


def test_too_many_bad_updates_end_the_run_or_are_let_through(tmp_path: Path) -> None:
    with pytest.raises(GuardStop, match="in a row"):
        watched(tmp_path, "sgd", 200, bad=range(60, 200), guard_limit="stop")
    watch, model = watched(tmp_path / "aside", "sgd", 200, bad=range(60, 200))
    assert watch._session.guard.aside == 70 + LAG
    assert not all(p.isfinite().all() for p in model.parameters())


def test_a_late_answer_about_updates_at_rest_counts_as_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty, "ALLOWANCE", 0.0)
    watch, _ = watched(tmp_path, "sgd", 1_200, bad=range(600, 1_200), budget=0.1)
    assert watch._session.guard.aside == 610 + LAG
