"""Options that nobody sets: what a program does only with another value is a note, whatever the rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.verdict.project import read_paths

TRAIN = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accum-steps", type=int{default})
args = parser.parse_args()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def severities(folder: Path, default: str, **texts: str) -> dict[str, str]:
    (folder / "train.py").write_text(TRAIN.format(default=default))
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    (reading,) = read_paths([str(folder / "train.py")], roots=[str(folder)])
    return {f.code: f.severity.value for f in reading.findings if f.code in {"FL103", "FL104"}}


def test_one_by_default_is_a_note(tmp_path: Path) -> None:
    assert set(severities(tmp_path, ", default=1").values()) == {"info"}


@pytest.mark.parametrize(
    "texts",
    [
        {"run_sh": "python train.py --accum-steps 4"},
        {"README_md": "`python train.py --accum_steps=4` if memory is short"},
        {"config_yaml": "accum_steps: 4\n"},
        {"config_json": '{"accum_steps": 4}'},
    ],
)
def test_a_text_that_sets_it_counts(tmp_path: Path, texts: dict[str, str]) -> None:
    assert set(severities(tmp_path, ", default=1", **texts).values()) & {"error", "warning"}


def test_one_in_every_configuration_is_a_note(tmp_path: Path) -> None:
    found = severities(tmp_path, "", a_yaml="accum_steps: 1\n", b_yaml="train:\n  accum_steps: 1\n")
    assert set(found.values()) == {"info"}


def test_nothing_known_is_no_reason_to_be_quiet(tmp_path: Path) -> None:
    assert set(severities(tmp_path, "").values()) & {"error", "warning"}


def test_what_another_program_is_run_with_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "pretrain.py").write_text(TRAIN.format(default=", default=1"))
    run = {"run_sh": "torchrun pretrain.py \\\n  --accum-steps 4\n"}
    assert set(severities(tmp_path, ", default=1", **run).values()) == {"info"}


SHARED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, args):
        self.model = torch.nn.Linear(4, 1)
        if getattr(args, "fsdp", False):
            self.model = FSDP(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
"""
PROGRAM = """
import argparse
import torch
from shared import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
{option}
Trainer(parser.parse_args()).train(torch.utils.data.DataLoader(torch.randn(8, 4)))
"""


@pytest.mark.parametrize(
    ("option", "told"),
    [("", set()), ('parser.add_argument("--fsdp", action="store_true")', {"FL308"})],
)
def test_an_option_that_this_program_does_not_have(
    option: str, told: set[str], tmp_path: Path
) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    (tmp_path / "train.py").write_text(PROGRAM.format(option=option))
    files = [str(tmp_path / name) for name in ("shared.py", "train.py")]
    readings = read_paths(files, roots=[str(tmp_path)])
    assert {f.code for r in readings for f in r.findings if f.code == "FL308"} == told


CLIPS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--clip", type=float, default={default})
args = parser.parse_args()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.randn(8, 4)):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    if args.clip{asked}:
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
"""


@pytest.mark.parametrize("asked", ["", " > 0", " != 0"])
@pytest.mark.parametrize(
    ("default", "run", "told"),
    [("0.0", "", "info"), ("1.0", "", "error"), ("0.0", "--clip 1", "error")],
)
def test_what_is_off_at_zero(asked: str, default: str, run: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"python train.py {run}\n")
    (tmp_path / "train.py").write_text(CLIPS.format(default=default, asked=asked))
    (reading,) = read_paths([str(tmp_path / "train.py")], roots=[str(tmp_path)])
    assert [f.severity.value for f in reading.findings if f.code == "FL101"] == [told]


EVERY_BATCH = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default={default})


def train(args, trainer, batches):
    for step, batch in enumerate(batches):
        loss = trainer.loss(batch) / args.gradient_accumulation_steps
        loss.backward()
        trainer.clip_grad_norm(1.0)
        if (step + 1) % args.gradient_accumulation_steps == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
"""


@pytest.mark.parametrize(("default", "told"), [("1", "info"), ("4", "warning")])
def test_what_only_the_words_say_of_a_window(default: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EVERY_BATCH.format(default=default))
    (reading,) = read_paths([str(tmp_path / "train.py")], roots=[str(tmp_path)])
    assert {f.severity.value for f in reading.findings if f.code == "FL103"} == {told}
