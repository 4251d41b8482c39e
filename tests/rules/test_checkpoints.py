"""The checkpoint rules, also where saving and loading are in different files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.finding import Severity
from fallline.rules import rule_by_code
from fallline.syntax import Project, Source
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text


def reported(code: str, text: str) -> list[tuple[int, Severity]]:
    rule = rule_by_code(code)
    assert rule is not None
    module = Project().add(Source("train.py", text))
    return [(finding.at.line, finding.severity) for finding in rule.check_syntax(module)]


def lines(code: str, text: str) -> list[int]:
    return [line for line, _ in reported(code, text)]


def in_project(folder: Path, code: str, **files: str) -> set[tuple[str, int]]:
    """File and line of every finding of one rule over files that were read together."""
    rule = rule_by_code(code)
    assert rule is not None
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    paths = [str(folder / f"{name}.py") for name in files]
    readings = read_paths(paths, rules=[rule], roots=[str(folder)])
    return {(Path(f.at.path).stem, f.at.line) for r in readings for f in r.findings}


TRAIN = """\
import torch
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.{schedule}
for epoch in range(9):
    loss(model).backward()
    optimizer.step()
    scheduler.step({argument})
    torch.save({state}, {path})
"""
MODEL, OPTIMIZER = "'model': model.state_dict()", "'optimizer': optimizer.state_dict()"
SCHEDULER = "'scheduler': scheduler.state_dict()"
RESTORES = "def restore(state):\n    optimizer.load_state_dict(state)\n"


def saves(
    *entries: str, schedule: str = "StepLR(optimizer, 3)", argument: str = "", path: str = "'a.pt'"
) -> str:
    return TRAIN.format(
        state="{" + ", ".join(entries) + "}", schedule=schedule, argument=argument, path=path
    )


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (saves(MODEL, "'epoch': epoch"), Severity.INFO),  # nobody is seen to resume
        (saves(MODEL, "'epoch': epoch") + "# to resume needs more\n", Severity.INFO),
        (saves(MODEL, "'epoch': epoch") + "resume = True\n", Severity.INFO),  # of what?
        (saves(MODEL, "'epoch': epoch") + "resume = torch.load('a.pt')\n", Severity.WARNING),
        (saves(MODEL, OPTIMIZER, "'epoch': epoch"), Severity.INFO),  # nobody restores it
        (saves(MODEL, OPTIMIZER, "'epoch': epoch") + RESTORES, Severity.WARNING),
        (saves(MODEL, OPTIMIZER, SCHEDULER) + RESTORES, Severity.WARNING),  # which epoch?
        (saves(MODEL, OPTIMIZER, SCHEDULER, "'epoch': epoch"), Severity.INFO),  # random states
        (
            saves(
                MODEL,
                OPTIMIZER,
                "'epoch': epoch",
                schedule="ReduceLROnPlateau(optimizer)",
                argument="loss",
            )
            + RESTORES,
            Severity.WARNING,
        ),
    ],
)
def test_checkpoint_incomplete(text: str, severity: Severity) -> None:
    assert reported("FL701", text) == [(8, severity)]


@pytest.mark.parametrize(
    "text",
    [
        saves(MODEL),
        saves(MODEL, "'classes': 10"),
        saves(MODEL, "'epoch': epoch", "**more"),
        saves(MODEL, "'epoch': epoch", "'optimizer': None"),
        saves("'model': old['model']", "'epoch': old['epoch']"),
        saves(MODEL, OPTIMIZER, "'epoch': epoch", "'rng': rng", argument="epoch"),
        saves(
            MODEL,
            OPTIMIZER,
            "'epoch': epoch",
            "'rng': 1",
            schedule="StepLR(optimizer, 3, last_epoch=start)",
        ),
        saves(MODEL, OPTIMIZER, SCHEDULER, "'rng': rng", path="f'{epoch}.pt'"),
        saves(MODEL, "'epoch': epoch").replace(
            "torch.save(", "accelerator.save_state('x'); torch.save("
        ),
    ],
)
def test_checkpoint_complete_or_not_for_resuming(text: str) -> None:
    assert reported("FL701", text) == []


def test_each_of_two_optimizers_is_asked_for() -> None:
    text = """\
import torch
def train(g, d):
    optimizer_g = torch.optim.Adam(g.parameters())
    optimizer_d = torch.optim.Adam(d.parameters())
    for step in range(9):
        optimizer_g.step()
        optimizer_d.step()
        torch.save({"step": step, "g": g.state_dict(), "optimizer_g": optimizer_g.state_dict(), "rng": 0}, "a.pt")
"""
    assert lines("FL701", text) == [8]
    both = text.replace('"rng"', '"optimizer_d": optimizer_d.state_dict(), "rng"')
    assert lines("FL701", both) == []


def test_one_helper_saves_each_optimizer_in_turn(tmp_path: Path) -> None:
    helper = """\
import torch


def save_checkpoint(model, optimizer, step, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "rng": 0}, path)
"""
    train = """\
import torch
from util import save_checkpoint

optim_g = torch.optim.Adam(g.parameters())
optim_d = torch.optim.Adam(d.parameters())
for step in range(9):
    optim_g.step()
    optim_d.step()
    save_checkpoint(g, optim_g, step, "g.pt")
    save_checkpoint(d, optim_d, step, "d.pt")
"""
    assert in_project(tmp_path, "FL701", train=train, util=helper) == set()


def test_a_helper_in_another_file_forgets_the_scheduler(tmp_path: Path) -> None:
    helper = """\
import torch


def save_checkpoint(model, optimizer, epoch):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "rng": 0}, "a.pt")
"""
    train = """\
import torch
from util import save_checkpoint

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for epoch in range(9):
    optimizer.step()
    scheduler.step()
    save_checkpoint(model, optimizer, epoch)
"""
    assert in_project(tmp_path, "FL701", train=train, util=helper) == {("util", 5)}


SAVER = """\
import torch
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "a.pt")
"""
RESUME = """\
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = torch.load("a.pt")
model.load_state_dict(state["model"])
start = state["epoch"]
for epoch in range(start, 9):
    optimizer.step()
"""


def test_saved_in_one_script_and_resumed_in_another(tmp_path: Path) -> None:
    assert in_project(tmp_path, "FL702", save=SAVER, resume=RESUME) == {("resume", 3)}


def test_saved_in_one_script_and_evaluated_in_another(tmp_path: Path) -> None:
    evaluate = """\
import torch
state = torch.load("a.pt")
model.load_state_dict(state["model"])
print(state["epoch"], model(x))
"""
    assert in_project(tmp_path, "FL702", save=SAVER, evaluate=evaluate) == set()


def test_resumed_by_a_helper_in_another_file(tmp_path: Path) -> None:
    helper = """\
import torch


def load_checkpoint(model, optimizer, path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    return state["epoch"]
"""
    train = """\
import torch
from util import load_checkpoint
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(load_checkpoint(model, optimizer, "a.pt"), 9):
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "a.pt")
"""
    assert in_project(tmp_path, "FL702", train=train, util=helper) == {("util", 5)}


@pytest.mark.parametrize(
    "restore",
    [
        "optimizer.load_state_dict(state['optimizer'])",
        "optimizer.load_state_dict(state.get('optimizer'))",
        "restore(state)",
        "for key in state: print(key)",
    ],
)
def test_restored_or_out_of_sight(restore: str) -> None:
    text = SAVER + RESUME.replace("import torch\n", "").replace("start =", f"{restore}\nstart =")
    assert lines("FL702", text) == []
    assert lines("FL702", SAVER + RESUME) == [5]


def test_resumed_in_one_expression() -> None:
    text = """\
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if args.{flag}:
    model.load_state_dict(torch.load(args.{flag})["model"])
optimizer.step()
torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, "a.pt")
"""
    assert lines("FL702", text.format(flag="resume")) == [4]
    assert lines("FL702", text.format(flag="pretrained")) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("torch.save(net, 'a.pt')", True),
        ("torch.save(model, 'a.pt')", True),
        ("torch.save({'model': net}, 'a.pt')", True),
        ("torch.save(net.state_dict(), 'a.pt')", False),
        ("model = net.state_dict(); torch.save(model, 'a.pt')", False),
        ("import io; torch.save(net, io.BytesIO())", False),
        ("torch.save(net(x), 'a.pt')", False),
        ("model['epoch'] = 3; torch.save(model, 'a.pt')", False),
        ("import io\n    with io.BytesIO() as memory: torch.save(net, memory)", False),
    ],
)
def test_module_pickled(statement: str, found: bool) -> None:
    text = f"import torch\nfrom torch import nn\ndef f(model, x):\n    net = nn.Linear(2, 2)\n    {statement}\n"
    assert bool(lines("FL703", text)) == found


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("args.resume", True),
        ("os.path.join(args.folder, 'a.pt')", True),
        ("os.environ['WEIGHTS']", True),
        ("sys.argv[1]", True),
        ("'a.pt'", False),
        ("unknown", False),
        ("self.path", False),
    ],
)
def test_load_unsafe(path: str, found: bool) -> None:
    text = (
        f"import os, sys, torch\ndef f(self, args):\n    torch.load({path}, weights_only=False)\n"
    )
    assert bool(lines("FL704", text)) == found


def test_what_the_program_saved_itself_it_may_load() -> None:
    text = (
        "import torch\ntorch.save(x, args.cache)\ny = torch.load(args.cache, weights_only=False)\n"
    )
    assert lines("FL704", text) == []


@pytest.mark.parametrize(
    ("path", "found"),
    [("'last.pt'", True), ("f'{epoch}.pt'", False), ("name(epoch)", False), ("buffer", False)],
)
def test_save_not_atomic(path: str, found: bool) -> None:
    text = f"import torch\nfor epoch in range(9):\n    optimizer.step()\n    torch.save(model.state_dict(), {path})\n"
    assert bool(lines("FL705", text)) == found


def test_seeds_are_compared_with_what_imported_files_draw(tmp_path: Path) -> None:
    seeds = "import torch\nimport data\n\n\ndef set_seed(n):\n    torch.manual_seed(n)\n"
    data = "import numpy as np\n\n\ndef noise(x):\n    return x + np.random.rand()\n"
    assert in_project(tmp_path, "FL706", seeds=seeds, data=data) == {("seeds", 5)}
    still = "import numpy as np\n\n\ndef noise(x, seed):\n    return x + np.random.default_rng(seed).random()\n"
    assert in_project(tmp_path, "FL706", seeds=seeds, data=still) == set()


def test_a_temporary_seed_is_no_seeding_function() -> None:
    text = """\
import contextlib, random, torch
@contextlib.contextmanager
def torch_seed(n):
    torch.manual_seed(n)
    yield
random.random()
"""
    assert lines("FL706", text) == []


@pytest.mark.parametrize(
    ("step", "more", "found"),
    [
        ("self.scheduler.step(valid_loss)", "", True),
        ("self.scheduler.step(epoch)", "", False),  # told where it is: nothing to save
        (
            "self.scheduler.step(valid_loss)",
            "torch.save(self.scheduler.state_dict(), 's.pt')",
            False,
        ),
    ],
)
def test_one_file_for_each_state(step: str, more: str, found: bool) -> None:
    text = f"""\
import torch
from copy import deepcopy


class Trainer:
    def __init__(self, model, optimizer, scheduler):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.scheduler = scheduler

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x in loader:
                self.optimizer.zero_grad()
                self.model(x).mean().backward()
                self.optimizer.step()
            valid_loss = self.validate()
            {step}
            self.save_checkpoint(epoch)

    def save_checkpoint(self, epoch):
        torch.save(deepcopy(self.optimizer.state_dict()), "optimizer.pt")
        torch.save(self.model.state_dict(), "model.pt")
        {more or "pass"}
"""
    missing = [f.evidence["missing"] for f in read_text(text) if f.code == "FL701"]
    assert (["the scheduler"] in missing) is found
