"""A call that cannot be seen into silences the rules whose question it could have answered, and no other."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

_SETUP = """import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from elsewhere import tune, advance, build_writer
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
writer = build_writer()
"""
_NEVER_CLEARED = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        {call}
"""
_NEVER_DIVIDED = """
for epoch in range(3):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        {call}
        if (step + 1) % 4 == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
_SAME_ORDER = """
for epoch in range(3):
    {call}
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


def codes(text: str) -> set[str]:
    return {finding.code for finding in read_text(text) if finding.severity != "info"}


@pytest.mark.parametrize(
    "call",
    [
        'writer.add_scalar("loss", loss, step)',
        "loss_meter.update(loss, x.size(0))",
        "metrics.step(loss)",
        "wandb.log({'loss': loss})",
        "progress_bar.update(loss)",
        "print(loss)",
        "advance(sampler)",
        "lr_logger(optimizer)",
    ],
)
def test_who_is_told_the_loss_cannot_clear_gradients(call: str) -> None:
    assert "FL106" in codes(_SETUP + _NEVER_CLEARED.format(call=call))


@pytest.mark.parametrize(
    "call", ["tune(optimizer)", "trainer.step(loss)", "engine.finish(optimizer)"]
)
def test_who_has_the_optimizer_can(call: str) -> None:
    assert "FL106" not in codes(_SETUP + _NEVER_CLEARED.format(call=call))


@pytest.mark.parametrize("call", ['writer.add_scalar("loss", loss, step)', "trainer.step(loss)"])
def test_who_is_told_the_loss_after_its_backward_cannot_divide_it(call: str) -> None:
    assert "FL104" in codes(_SETUP + _NEVER_DIVIDED.format(call=call))


def test_who_has_the_optimizer_can_divide_gradients() -> None:
    assert "FL104" not in codes(_SETUP + _NEVER_DIVIDED.format(call="tune(optimizer)"))


@pytest.mark.parametrize("call", ["tune(optimizer)", "writer.flush()"])
def test_the_sampler_is_told_its_epoch_by_who_has_it(call: str) -> None:
    assert "FL303" in codes(_SETUP + _SAME_ORDER.format(call=call))


@pytest.mark.parametrize("call", ["advance(sampler, epoch)", "advance(loader, epoch)"])
def test_who_has_the_sampler_may_tell_it_its_epoch(call: str) -> None:
    assert "FL303" not in codes(_SETUP + _SAME_ORDER.format(call=call))


def test_a_caller_that_is_not_in_view_cannot_divide_a_loss_whose_backward_is_here() -> None:
    text = """import torch
from torch import nn

class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def training_batch(self, x, y, batch_idx):
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if (batch_idx + 1) % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()
"""
    assert codes(text) == {"FL104"}


def test_an_environment_steps_no_optimizer() -> None:
    wrapper = """
import gym

class Counted(gym.Wrapper):
    def step(self, action):
        self.count = self.count + 1
        return super().step(action)

env = Counted(gym.make("CartPole-v1"))
"""
    text = _SETUP + wrapper + _NEVER_CLEARED.format(call="env.step(model(x).argmax())")
    assert "FL106" in codes(text)
