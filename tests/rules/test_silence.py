"""Right programs that were reported once, in code that nobody here wrote: they stay without errors and warnings. Each is a file in silent/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

SILENT = sorted((Path(__file__).parent / "silent").glob("*.py"))

UNIT_TEST = """\
import pytest
import torch


def reference_distance_loss(a, b):
    return torch.sqrt((a - b) ** 2).mean()


class TestMargin:
    def test_loss(self):
        model = torch.nn.Linear(3, 3)
        a = model(torch.randn(4, 3))
        loss = reference_distance_loss(a, torch.zeros(4, 3))
        loss = torch.nan_to_num(loss)
        loss.backward()
        assert torch.isfinite(loss)
"""


@pytest.mark.parametrize("path", SILENT, ids=lambda path: path.stem)
def test_right(path: Path) -> None:
    found = read_text(path.read_text(encoding="utf-8"), path.name)
    assert [str(f) for f in found if f.severity.value != "info"] == []


@pytest.mark.parametrize("path", ["tests/losses/test_margin.py", "pkg_tests/margin_test.py"])
def test_a_unit_test_is_noted_only(path: str) -> None:
    found = read_text(UNIT_TEST, path)
    assert {f.code for f in found} >= {"FL603"}
    assert {f.severity.value for f in found} == {"info"}


def test_an_evaluation_script_is_not_a_unit_test() -> None:
    script = """\
import torch

model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def test_loss(a, b):
    return a


def distance_loss(a, b):
    return torch.sqrt((a - b) ** 2).mean()


for step in range(10):
    optimizer.zero_grad()
    distance_loss(model(torch.randn(4, 3)), torch.zeros(4, 3)).backward()
    optimizer.step()
"""
    assert [f.severity.value for f in read_text(script, "test_net.py")] == ["warning"]


def test_a_lecture_writes_it_by_hand() -> None:
    code = "import torch\n\ndef cross_entropy_loss(logits, y):\n    p = torch.softmax(logits, 1)\n    return -torch.log(p[range(len(y)), y]).mean()\n"
    book = {"cells": [{"cell_type": "code", "source": code}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    found = read_text(json.dumps(book), "lecture.ipynb")
    assert {f.severity.value for f in found} <= {"info"}


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("lectures/03_softmax.py", "info"),
        ("ch03/softmax_from_scratch.py", "info"),
        ("research/losses.py", "warning"),
        ("src/switch.py", "warning"),
    ],
)
def test_a_course_writes_it_by_hand(path: str, severity: str) -> None:
    code = """\
import torch

model = torch.nn.Linear(3, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def cross_entropy_loss(logits, y):
    p = torch.softmax(logits, 1)
    return -torch.log(p[range(len(y)), y]).mean()


for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = cross_entropy_loss(model(torch.randn(4, 3)), torch.zeros(4).long())
    loss.backward()
    optimizer.step()
"""
    assert [f.severity.value for f in read_text(code, path) if f.code == "FL605"] == [severity]


BENCHMARK = """\
import time

import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(4, 8, device="cuda")
start = time.perf_counter()
for _ in range(100):
    model(x).mean().backward()
    optimizer.step()
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def test_a_benchmark_trains_nothing() -> None:
    assert {f.severity.value for f in read_text(BENCHMARK, "train.py") if f.code == "FL106"} == {
        "error"
    }
    assert {f.severity.value for f in read_text(BENCHMARK, "benchmarks/step.py")} == {"info"}
    assert {f.severity.value for f in read_text(BENCHMARK, "scripts/bench_step.py")} == {"info"}


def test_an_empty_notebook_is_nothing() -> None:
    assert read_text("", "begun.ipynb") == []


def test_what_is_left_over_leaks_into_the_next_epoch() -> None:
    """Nothing clears at the start of an epoch: the message says where the rest goes."""
    text = """\
import torch
from tqdm import trange


def train(args, model, loader, criterion, optimizer):
    model.zero_grad()
    for epoch in trange(int(args.epochs)):
        for step, (x, y) in enumerate(loader):
            loss = criterion(model(x), y) / args.accumulation_steps
            loss.backward()
            if (step + 1) % args.accumulation_steps == 0:
                optimizer.step()
                model.zero_grad()
"""
    (found,) = [f for f in read_text(text) if f.code == "FL107"]
    assert "leak into" in found.message


LOSSES = """\
from torch import nn


class DistanceLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, a, b):
        return (self.parts[0](a) - self.parts[1](b)).abs().mean()


class MarginLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, a, b):
        return (self.parts[0](a) - self.parts[1](b)).relu().mean()
"""


def severities(folder: Path, main: str) -> dict[int, str]:
    (folder / "losses.py").write_text(LOSSES)
    (folder / "main.py").write_text(main)
    paths = [str(folder / "losses.py"), str(folder / "main.py")]
    found = [f for r in read_paths(paths, roots=[str(folder)]) for f in r.findings]
    return {f.at.line: f.severity.value for f in found}


def test_a_loss_that_nobody_uses_is_noted_only(tmp_path: Path) -> None:
    by_name = "from losses import MarginLoss\n\nloss_fn = MarginLoss()\n"
    assert severities(tmp_path, by_name) == {7: "info", 16: "error"}


def test_a_loss_that_is_imported_with_everything_and_named_nowhere_is_noted_only(
    tmp_path: Path,
) -> None:
    everything = "from losses import *\n\nloss_fn = MarginLoss()\n"
    assert severities(tmp_path, everything) == {7: "info", 16: "error"}


def test_a_loss_that_is_looked_up_by_name_is_used(tmp_path: Path) -> None:
    by_name = "import sys\n\nimport losses\n\nloss_fn = getattr(losses, sys.argv[1])()\n"
    assert severities(tmp_path, by_name) == {7: "error", 16: "error"}


def test_a_package_that_others_install_is_used_by_them(tmp_path: Path) -> None:
    built = '[build-system]\nbuild-backend = "hatchling.build"\n\n[project]\nname = "margins"\n'
    (tmp_path / "pyproject.toml").write_text(built + 'classifiers = ["Typing :: Typed"]\n')
    assert severities(tmp_path, "from losses import MarginLoss\n") == {7: "error", 16: "error"}
    (tmp_path / "pyproject.toml").write_text(built)
    (tmp_path / "README.md").write_text("Run `pip install margins`.\n")
    assert severities(tmp_path, "from losses import MarginLoss\n") == {7: "error", 16: "error"}
    # installed in place, for its own scripts alone
    (tmp_path / "README.md").write_text("Run `pip install -e .`, then `python main.py`.\n")
    assert severities(tmp_path, "from losses import MarginLoss\n") == {7: "info", 16: "info"}


def test_a_class_that_only_dead_code_uses_is_noted_only(tmp_path: Path) -> None:
    """Passed on by an `__init__.py`, listed in `__all__`, used by a class that nobody makes."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts.wrap import Wrapped, Fine\n")
    (tmp_path / "parts" / "wrap.py").write_text(
        "from losses import DistanceLoss, MarginLoss\n\n__all__ = ['Wrapped', 'Fine']\n\n\n"
        "class Wrapped:\n    def __init__(self):\n        self.loss = DistanceLoss()\n\n\n"
        "class Fine:\n    def __init__(self):\n        self.loss = MarginLoss()\n"
    )
    main = "import losses\nfrom parts import Fine\n\nfine = Fine()\n"
    assert severities(tmp_path, main) == {7: "info", 16: "error"}


def test_a_file_that_nothing_imports_is_noted_only(tmp_path: Path) -> None:
    """Others of its folder are imported; a script beside it is run."""
    (tmp_path / "old_losses.py").write_text(LOSSES)
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "main.py").write_text("from losses import DistanceLoss, MarginLoss\n\nfns = DistanceLoss(), MarginLoss()\n")  # fmt: skip
    paths = [str(tmp_path / name) for name in ("old_losses.py", "losses.py", "main.py")]
    found = [f for r in read_paths(paths, roots=[str(tmp_path)]) for f in r.findings]
    assert {(Path(f.at.path).stem, f.severity.value) for f in found} == {("old_losses", "info"), ("losses", "error")}  # fmt: skip


AMP = (Path(__file__).parent / "silent" / "mixed_precision_that_nobody_turns_on.py").read_text()


@pytest.mark.parametrize(
    ("config", "severity"),
    [("use_amp: false\n", "info"), ("use_amp: true\n", "warning"), ("", "warning")],
)
def test_mixed_precision_that_every_configuration_turns_off(
    tmp_path: Path, config: str, severity: str
) -> None:
    """A default alone does not say that nobody turns it on; a configuration does."""
    script = AMP.replace("model, use_amp=False", "model, use_amp").replace("nn.Linear(4, 1))", "nn.Linear(4, 1), config.use_amp)")  # fmt: skip
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "config.yaml").write_text(config)
    found = [f for r in read_paths([str(tmp_path / "train.py")], roots=[str(tmp_path)]) for f in r.findings]  # fmt: skip
    assert [(f.code, f.severity.value) for f in found if f.code == "FL201"] == [("FL201", severity)]


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        ('import tensorflow as tf\nprint "epoch"\n', "info"),
        ("import tensorflow as tf\nloss = = 1\n", "info"),
        ("import torch\nloss = = 1\n", "error"),
    ],
)
def test_a_file_of_another_framework_that_cannot_be_read_is_noted_only(
    code: str, severity: str
) -> None:
    assert [(f.code, f.severity.value) for f in read_text(code, "a.py")] == [("FL000", severity)]


UNET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def test_model():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.randn(8, 4)):
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()


if __name__ == "__main__":
    test_model()
"""


def test_what_a_file_does_to_try_itself_out_is_noted_only(tmp_path: Path) -> None:
    (tmp_path / "unet.py").write_text(UNET)
    paths = [str(tmp_path / "unet.py")]
    alone = [f for r in read_paths(paths, roots=[str(tmp_path)]) for f in r.findings]
    assert [f.severity.value for f in alone if f.code == "FL118"] == ["warning"]
    (tmp_path / "train.py").write_text("from unet import Net\n\nnet = Net()\n")
    beside = [f for r in read_paths(paths, roots=[str(tmp_path)]) for f in r.findings]
    assert [f.severity.value for f in beside if f.code == "FL118"] == ["info"]
