"""Mistakes in classes whose loop is out of view, as mutations of public trainers made them, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

SCALED = """\
import torch


class Trainer:
    def __init__(self, config, model, optimizer):
        self.scaler = torch.amp.GradScaler("cuda", enabled=config.amp)
        self.model, self.optimizer = model, optimizer

    def backward(self, losses):
        total = gather(losses)
        self.scaler.scale(total).backward()

    def apply(self):
        {check}
        {step}
        self.scaler.update()
"""

KEPT = """\
import torch


class Trainer:
    def save(self, path):
        state = {{"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}}
        torch.save(state, path)

    def {load}(self, path):
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        {restore}

    def update(self, x, y):
        self.optimizer.zero_grad()
        torch.nn.functional.l1_loss(self.model(x), y).backward()
        self.optimizer.step()
"""

LAYERS = """\
import copy

from torch import nn


class Attention(nn.Module):
    def __init__(self, block_class, size):
        super().__init__()
        self.merge = nn.Linear(size, size)
        self.size = [size]
        self.parts = {parts}

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
"""


def codes(source: str) -> set[str]:
    return {f.code for f in read_text(source)}


@pytest.mark.parametrize(
    ("step", "check", "found"),
    [
        ("self.optimizer.step()", "pass", True),
        ("self.scaler.step(self.optimizer)", "pass", False),
        ("self.optimizer.step()", "if self.found_inf(): return", False),  # the skip is made by hand
        ("self.scheduler.step()", "pass", False),
    ],
)
def test_a_step_beside_the_update_of_a_scaler(step: str, check: str, found: bool) -> None:
    assert ("FL203" in codes(SCALED.format(step=step, check=check))) is found


@pytest.mark.parametrize(
    ("load", "restore", "found"),
    [
        ("resume", "self.epoch = state['epoch']", True),
        ("load", "pass", True),
        (
            "load",
            "self.optimizer.load_state_dict(state['optimizer']); self.epoch = state['epoch']",
            False,
        ),
        ("load_for_inference", "pass", False),  # the state of training is of no use there
        ("resume", "self.restore_rest(state)", False),  # the dict goes on
        # the keys of a loop are read: the epoch is not among these
        ("resume", "for k in ('optimizer',): getattr(self, k).load_state_dict(state[k])", True),
        ("resume", "for k in ('optimizer', 'epoch'): self.put_back(k, state[k])", False),
    ],
)
def test_state_that_is_saved_and_never_read(load: str, restore: str, found: bool) -> None:
    assert ("FL702" in codes(KEPT.format(load=load, restore=restore))) is found


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ("[copy.deepcopy(self.merge) for _ in range(3)]", True),
        ("[block_class(size) for _ in range(3)]", True),
        ("nn.ModuleList([copy.deepcopy(self.merge) for _ in range(3)])", False),
        ("[copy.deepcopy(self.size) for _ in range(3)]", False),
        ("[blocks(size) for _ in range(3)]", False),
    ],
)
def test_copies_and_classes_that_are_handed_over(parts: str, found: bool) -> None:
    assert ("FL801" in codes(LAYERS.format(parts=parts))) is found
