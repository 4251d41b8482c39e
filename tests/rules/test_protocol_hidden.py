"""Mistakes of the update protocol where the code around them hid it: a base class's loop, a constant that people edit, a generator, a length."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

BASE = """\
import torch


class BaseTrainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in self.loader:
                self.train_step(batch)

    def train_step(self, batch):
        raise NotImplementedError
"""

DERIVED = """\
import torch
from base import BaseTrainer


class Trainer(BaseTrainer):
    def train_step(self, batch):
        {clear}
        loss = torch.nn.functional.mse_loss(self.model(batch), batch)
        loss.backward()
        self.optimizer.step()
"""

EDITED = """\
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

distributed = False
data = torch.randn(64, 2)
model = torch.nn.Linear(2, 1)
if distributed:
    sampler = DistributedSampler(data)
else:
    sampler = None
loader = DataLoader(data, shuffle=sampler is None, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    {tell}
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""

HANDED_OVER = """\
import torch
from backends import distribute
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

data = torch.randn(64, 2)
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
model, optimizer, loader = distribute(torch.nn.Linear(2, 1), loader)
for epoch in range(3):
    {tell}
    for x in loader:
        model.train_on(x)
"""

PASSED_ON = """\
class Log:
    def every(self, iterable, often):
        for item in iterable:
            yield item


def train(model, batches, criterion, optimizer, steps, accum_steps):
    for i in Log().every(range(steps), 50):
        x, y = next(batches)
        loss = criterion(model(x), y){divided}
        loss.backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

LAST = """\
import contextlib

import torch


class Trainer:
    def __init__(self, model, loader):
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.loader = loader

    def train(self):
        for batch in self.loader:
            self.optimizer.zero_grad()
            pieces = self.cut(batch)
            for number, piece in enumerate(pieces):
                with self.model.no_sync() if number {test} len(pieces) - 1 else contextlib.nullcontext():
                    (self.model(piece).mean() / len(pieces)).backward()
            self.optimizer.step()
"""

LENGTH = """\
class Trainer:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def train(self, loader, step=16):
        batches = iter(loader)
        for _ in range(step):
            x, y = next(batches)
            {before}
            self.criterion(self.model(x), y).backward()
            {after}
            self.optimizer.step()
"""

HELD = """\
class Agent:
    def __init__(self, actor, critic, buffer):
        self.actor, self.critic, self.buffer = actor, critic, buffer

    def update(self):
        for _ in range(8):
            batch = self.buffer.sample()
            loss = self.critic(batch).pow(2).mean()
            {before}
            loss.backward()
            {after}
            self.critic.optimizer.step()
"""

PREPARED = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for x in loader:
        {before}
        accelerator.backward(model(x).mean())
        {after}
        optimizer.step()
"""


def codes(text: str) -> set[str]:
    return {f.code for f in read_text(text, "train.py")}


def codes_of(folder: Path, **files: str) -> set[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    readings = read_paths([str(folder / "train.py")], roots=[str(folder)])
    return {f.code for reading in readings for f in reading.findings}


@pytest.mark.parametrize("clear", ["pass", "self.optimizer.zero_grad()"])
def test_the_loop_of_a_base_class(tmp_path: Path, clear: str) -> None:
    found = codes_of(tmp_path, base=BASE, train=DERIVED.format(clear=clear))
    assert ("FL106" in found) == (clear == "pass")


@pytest.mark.parametrize("tell", ["pass", "sampler is None or sampler.set_epoch(epoch)"])
def test_a_constant_that_people_edit(tell: str) -> None:
    found = [f for f in read_text(EDITED.format(tell=tell), "train.py") if f.code == "FL303"]
    assert bool(found) == (tell == "pass")


@pytest.mark.parametrize("tell", ["pass", "sampler.set_epoch(epoch)"])
def test_a_word_that_the_project_never_spells(tmp_path: Path, tell: str) -> None:
    found = codes_of(tmp_path, train=HANDED_OVER.format(tell=tell))
    assert ("FL303" in found) == (tell == "pass")


def test_another_file_spells_it(tmp_path: Path) -> None:
    tells = "def loop(loader, epoch):\n    loader.sampler.set_epoch(epoch)\n"
    found = codes_of(tmp_path, train=HANDED_OVER.format(tell="pass"), loops=tells)
    assert "FL303" not in found


@pytest.mark.parametrize("divided", ["", " / accum_steps"])
def test_a_generator_that_passes_on_a_range(divided: str) -> None:
    assert ("FL104" in codes(PASSED_ON.format(divided=divided))) == (not divided)


@pytest.mark.parametrize("test", ["==", "!="])
def test_the_length_of_what_the_loop_goes_over(test: str) -> None:
    found = codes(LAST.format(test=test))
    assert ("FL310" in found) == (test == "==")
    assert "FL301" not in found or test == "=="


CLEARS = "{}.zero_grad()"


@pytest.mark.parametrize(
    ("text", "clear"),
    [
        (LENGTH, CLEARS.format("self.optimizer")),
        (HELD, CLEARS.format("self.critic.optimizer")),
        (PREPARED, CLEARS.format("optimizer")),
    ],
    ids=["a length that is called step", "held by a model", "prepared by Accelerate"],
)
def test_cleared_between_backward_and_step(text: str, clear: str) -> None:
    assert "FL105" in codes(text.format(before="pass", after=clear))
    assert "FL105" not in codes(text.format(before=clear, after="pass"))


def test_a_window_that_nobody_turns_on_is_a_note() -> None:
    text = PASSED_ON.format(divided="").replace("accum_steps)", "accum_steps=1)")
    (found,) = [f for f in read_text(text, "train.py") if f.code == "FL104"]
    assert found.severity.value == "info"
    assert "1 by default" in found.message
