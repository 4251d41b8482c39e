"""Two runs of one program, with one thing changed that nothing but the run itself shows: it is named first."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fallline
from fallline.diff import Comparison, compare
from fallline.diff.settings import settings_of
from fallline.runs.read import read_run
from fallline.watcher.provenance.environment import surroundings

UPDATES = 12


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.drop = nn.Dropout(dropout)
        self.mid = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.mid(self.drop(self.body(x).relu())).relu())
        return out


def train(
    *,
    seed: int = 0,
    order: int = 1,
    lr: float = 0.01,
    decay: float = 0.01,
    batch: int = 16,
    dropout: float = 0.1,
    clip: float = 1.0,
    warm: int = 1,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    init: bool = False,
    dtype: torch.dtype = torch.float32,
    corrupt: int | None = None,
    smoothing: float = 0.0,
    doubled: int | None = None,
    noise: float = 0.0,
    updates: int = UPDATES,
) -> None:
    torch.manual_seed(seed)
    made = torch.Generator().manual_seed(7)
    x, y = torch.randn(256, 8, generator=made), torch.randint(0, 3, (256,), generator=made)
    if corrupt is not None:
        x[corrupt] *= 3
    sampling = torch.Generator().manual_seed(order)
    loader = DataLoader(TensorDataset(x.to(dtype), y), batch, shuffle=True, generator=sampling)
    model = Net(dropout)
    if init:
        nn.init.normal_(model.mid.weight)
    model.to(dtype)
    if noise:
        for parameter in model.parameters():
            parameter.register_hook(lambda g: jittered(g, noise))
    step = optimizer(model.parameters(), lr=lr, weight_decay=decay)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.LambdaLR(step, lambda u: min(1.0, (u + 1) / warm))
    update = 0
    while update < updates:
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets, label_smoothing=smoothing)
            loss.backward()
            if update == doubled:
                model.mid.weight.grad *= 2
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            step.step()
            step.zero_grad()
            schedule.step()
            update += 1
            if update == updates:
                return


def jittered(gradient: Tensor, size: float) -> Tensor:
    """Rounded differently each time, as a sum in a different order is."""
    made = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))
    return gradient * (1 + size * torch.randn(gradient.shape, generator=made))


def record(folder: Path, **changes: Any) -> Path:
    with fallline.watch(out=folder):
        train(**changes)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("base") / "run")


def against(base: Path, folder: Path, **changes: Any) -> Comparison:
    return compare(read_run(base), read_run(record(folder, **changes)))


@pytest.mark.parametrize(
    ("changes", "kind", "says", "update", "module"),
    [
        ({"seed": 1}, "options", "torch's seed: 0 → 1", None, None),
        ({"order": 2}, "data", "the order of samples", 0, None),
        ({"batch": 8}, "data", "batch size", 0, None),
        ({"corrupt": 5}, "data", "sample 5 of the dataset", None, None),
        ({"init": True}, "initialisation", "mid.weight begins differently", 0, "mid"),
        ({"dtype": torch.float64}, "initialisation", "dtype of body.weight", 0, "body"),
        ({"lr": 0.0101}, "learning-rate", "0.01 → 0.0101", 0, None),
        ({"warm": 2}, "learning-rate", "0.01 → 0.005", 0, None),
        ({"decay": 0.02}, "optimizer", "weight_decay: 0.01 → 0.02", 0, None),
        ({"optimizer": torch.optim.Adam}, "optimizer", "AdamW → Adam", 0, None),
        ({"clip": 0.5}, "optimizer", "clipping", 0, None),
        ({"dropout": 0.2}, "options", "drop.p: 0.1 → 0.2", None, "drop"),
        ({"smoothing": 0.01}, "numbers", "the loss at update 0", 0, None),
        ({"doubled": 9}, "numbers", "most in mid.weight", 9, "mid"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_change_is_named_first(
    base: Path, tmp_path: Path, changes: dict[str, Any], kind: str, says: str, update: int | None, module: str | None
) -> None:  # fmt: skip
    found = against(base, tmp_path / "run", **changes)
    assert not found.same and found.first is not None
    assert (found.first.kind, found.first.module) == (kind, module), found.first
    assert says in found.first.what
    assert update is None or found.first.update == update


def test_what_follows_from_a_cause_is_not_listed(base: Path, tmp_path: Path) -> None:
    found = against(base, tmp_path / "run", lr=0.02)
    assert [d.kind for d in found.differences] == ["learning-rate"]


def test_the_script_is_compared_whatever_its_file_is_called() -> None:
    def run(name: str, line: str) -> Any:
        files = {name: {"lines": ["import torch", line]}}
        return types.SimpleNamespace(
            meta={"script": f"/home/me/{name}", "code": {"files": files}}, world=1
        )

    found, notes = settings_of(run("good.py", "x = mask"), run("bad.py", "x = ~mask"))
    assert [d.what for d in found] == ["bad.py:2: `x = mask` → `x = ~mask`"]
    assert notes == []


def test_a_loss_that_an_optimizer_cannot_explain_is_listed_too(base: Path, tmp_path: Path) -> None:
    found = against(base, tmp_path / "run", lr=0.02, smoothing=0.01)
    assert [d.kind for d in found.differences] == ["learning-rate", "numbers"]
    assert "the loss at update 0" in found.differences[1].what


def test_the_version_of_a_lazy_module_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazily")
    lazy.__dict__["_objects"] = {"__version__": "4.45.2"}
    monkeypatch.setitem(sys.modules, "lazily", lazy)
    assert surroundings()["lazily (version)"] == "4.45.2"


def test_the_same_run_twice_is_the_same_bit_for_bit(base: Path, tmp_path: Path) -> None:
    found = against(base, tmp_path / "run")
    assert found.same and found.noise.identical and found.differences == []
    assert "initialisation of 6 parameters" in found.agrees
    assert any(said.startswith("data (12 batches, 12 with their samples") for said in found.agrees)


@pytest.mark.parametrize("changes", [{}, {"lr": 0.1}, {"optimizer": torch.optim.SGD, "lr": 0.5}], ids=str)  # fmt: skip
def test_runs_that_differ_by_rounding_are_the_same_within_noise(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    first = record(tmp_path / "a", noise=1e-7, updates=60, **changes)
    found = against(first, tmp_path / "b", noise=1e-7, updates=60, **changes)
    assert found.same and not found.noise.identical, found.first


def test_a_change_is_seen_through_the_noise(tmp_path: Path) -> None:
    first = record(tmp_path / "a", noise=1e-7)
    found = against(first, tmp_path / "b", noise=1e-7, doubled=8)
    assert not found.same and found.first is not None
    assert (found.first.kind, found.first.update, found.first.module) == ("numbers", 8, "mid")


def test_the_command_says_it_in_text_json_and_a_page(
    base: Path, tmp_path: Path, fallline: Callable[..., Any]
) -> None:
    other = record(tmp_path / "other", lr=0.02)
    ran = fallline("diff", base, other, "--html", tmp_path / "page.html")
    assert ran.status == 1
    assert "The runs differ, first in the learning rate: " in ran.out
    page = (tmp_path / "page.html").read_text()
    assert "What differs, first cause first" in page and "Both curves" in page
    assert "http" not in page.replace("http-equiv", "")
    ran = fallline("diff", base, other, "--output-format", "json")
    said = json.loads(ran.out)
    assert ran.status == 1 and said["same"] is False
    assert said["first"]["kind"] == "learning-rate" and said["first"]["update"] == 0
    assert said["differences"][0] == said["first"]
    assert fallline("diff", base, base).status == 0
    assert fallline("diff", base, tmp_path / "nothing").status == 2


def test_runs_of_older_versions_are_compared_by_their_curves(base: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "run", lr=0.02)
    with sqlite3.connect(other / "rank0.sqlite") as db:
        db.execute("drop table prints")
        db.execute("delete from meta where key in ('environment', 'code', 'options', 'model', 'loaders')")  # fmt: skip
    found = compare(read_run(base), read_run(other))
    assert found.first is not None and found.first.kind == "learning-rate"
    assert any("older version" in note for note in found.notes)
