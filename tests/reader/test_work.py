"""How much work a program is to the reader, counted in executions and statements, never in seconds."""

from __future__ import annotations

import time

import pytest

from fallline.reader import execute
from fallline.reader.execute import traces_of
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts
from fallline.syntax import Project, Source
from fallline.verdict.project import called_names
from fallline.verdict.reading import read_text

_HEAD = """import torch
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


def executions(text: str, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """Every execution on paper that a script takes."""
    made: list[Machine] = []
    run = execute._run

    def counted(*args: object) -> Machine:
        made.append(run(*args))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(execute, "_run", counted)
    module = Project().add(Source.from_bytes("train.py", text.encode()))
    for _ in traces_of(module, time.thread_time() + 3600):
        pass
    return made


def test_a_choice_that_changes_nothing_is_flipped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "abcdefgh"
    idle = "".join(f"if args.{f}:\n    scheduler_name_{f} = 'cosine'\n" for f in flags)
    assert len(executions(_HEAD + idle + _LOOP, monkeypatch)) == 1 + len(flags) + 1


def test_choices_that_stand_in_for_each_other_are_flipped_together() -> None:
    text = f"""{_HEAD}
sync = False
if args.first:
    sync = True
if args.second:
    sync = True
for x, y in loader:
    if sync:
        optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    if not sync:
        optimizer.zero_grad()
    optimizer.step()
"""
    assert "FL105" in {finding.code for finding in read_text(text)}


def test_the_blocks_of_a_model_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(blocks: int) -> int:
        text = f"""import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, width)
        self.d = nn.Linear(width, width)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList()
        for i in range({blocks}):
            self.blocks.append(Block(2 ** i))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{_LOOP}"""
        return sum(machine.bounds.spent for machine in executions(text, monkeypatch))

    assert work(7) - work(2) == 5  # the loop's own statement, and none of the block's


_ACCUMULATES = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    loss = model(x, y)
    loss.backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_block_whose_size_decides_is_built_again() -> None:
    text = f"""import torch
from torch import nn

def norm(i):
    if i > 0:
        return nn.BatchNorm1d(4)
    return nn.Identity()

class Block(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.norm = norm(i)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(3):
            self.block = Block(i)

model = Net()
{_ACCUMULATES}"""
    assert "FL128" in {finding.code for finding in read_text(text)}


def test_a_choice_in_a_model_that_scales_the_loss_is_tried_both_ways() -> None:
    text = f"""import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.out(x), y)
        return loss / 4 if args.scaled else loss

model = Net()
{_ACCUMULATES}"""
    assert "FL104" in {finding.code for finding in read_text(text)}


def test_asking_what_something_is_does_not_call_it() -> None:
    text = """from torch import nn

class Net(nn.Module):
    def check(self):
        self.eval()

def save(model):
    return isinstance(model, Net)

def build():
    return Net()
"""
    module = Project().add(Source.from_bytes("save.py", text.encode()))
    assert not acts(module, [module.functions["save"]])
    assert acts(module, [module.functions["build"]])


def test_the_shape_of_a_model_is_no_reason_for_another_execution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"""import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.norm = nn.LayerNorm(4) if args.norm else nn.Identity()
        self.gate = nn.Linear(4, 4) if args.gated else nn.Identity()

model = Net(args)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{_LOOP}"""
    assert len(executions(text, monkeypatch)) == 1


def test_a_word_of_a_megabyte_is_passed_over() -> None:
    # a picture in a notebook; one step back for each letter would be 10^12 of them
    assert called_names(b"optimizer " + b"A" * 1_000_000 + b" step(x)") == {b"step"}


def test_a_number_named_like_a_call_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`step` is handed to the logger as a number; nobody steps."""
    text = f"""{_HEAD}
def log(loss, step):
    writer.add_scalar("loss", loss, step)
"""
    assert executions(text, monkeypatch) == []


def test_a_function_handed_over_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""{_HEAD}
def step(x, y):
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

for x, y in loader:
    apply(step, x, y)
"""
    assert executions(text, monkeypatch)


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
def test_who_calls_each_other_is_answered_the_same_in_any_order(order: list[str]) -> None:
    text = """
def first(loss):
    second(loss)
    train(loss)

def second(loss):
    first(loss)

def train(loss):
    loss.backward()
"""
    module = Project().add(Source.from_bytes("train.py", text.encode()))
    assert [acts(module, [module.functions[name]]) for name in order] == [True, True]
