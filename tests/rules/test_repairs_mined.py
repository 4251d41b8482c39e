"""Mistakes that public projects repaired, in their shape, and the repaired code: nothing that calls them is in view."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

PYTHON_2 = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, size):
        {first}
        self.fc = nn.Linear(size, 2)  # here
        print "made", size

    def forward(self, x):
        try:
            return self.fc(x)
        except RuntimeError, error:
            raise ValueError, "no"
"""

GIVEN = """\
import torch.nn as nn


class Policy(nn.Module):
    def __init__(self, graph, embedder=None):
        {first}
        self.embedder = embedder  # here
        self.graph = graph
        super(Policy, self).__init__()

    def forward(self, x):
        if self.embedder is not None:
            x = self.embedder(x)
        return self.graph(x)
"""

TEACHER = """\
import torch
from accelerate import Accelerator

from project import build_model, calc_loss


def main(train_loader, val_loader, args):
    accelerator = Accelerator()
    model = build_model(args)
    kd_model = build_model(args.teacher)
    kd_model.eval()
    optimizer = torch.optim.AdamW(model.parameters())
    model.train()
    for it, data in enumerate(train_loader):
        optimizer.zero_grad()
        accelerator.backward(calc_loss(data, model(data), kd_model(data)))
        optimizer.step()
        if it % 100 == 0:
            {rests}
            with torch.no_grad():
                for val_data in val_loader:  # here
                    kd_results = kd_model(val_data)
                    print(calc_loss(val_data, model(val_data), kd_results))
            {back}
"""

BETWEEN = """\
import torch


class Trainer:
    def __init__(self, model, loss_fn, optimizer, train_loader, validation_loader):
        self._model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.train_loader, self.validation_loader = train_loader, validation_loader

    def train(self, epochs):
        for _ in range(epochs):
            {back}
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.loss_fn(self._model(x), y)
                loss.backward()
                self.optimizer.step()
            {rests}
            for x, y in self.validation_loader:  # here
                print(self.loss_fn(self._model(x), y).data.cpu().numpy())
"""

OWN_LOOP = """\
import torch


class Trainer:
    def fit(self):
        for _ in range(10):
            if self.train(self.loaders["train"]):
                return

    def train(self, loader):
        self.model.train()
        for i, (x, y) in enumerate(loader):
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            if i % 100 == 0:
                {rests}
                self.validate(self.loaders["val"])
                {back}

    def validate(self, val_loader):
        with torch.no_grad():
            for x, y in val_loader:  # here
                print(self.criterion(self.model(x), y).item())
"""

TOLD = """\
import torch


class Trainer:
    def batch_step(self, data, validation=False):
        {mode}
        out = self.model(data)
        loss = self.loss(out, data)
        if not validation:
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
        return loss.item()
"""

HELD = """\
import torch
import torch.nn as nn

from project import build_model, loss_function, optimizer_for


class BaseModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.model = build_model(args)
        self.optimizer = optimizer_for(self.model)

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = loss_function(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def validate_model(self, loader):
        self.model.eval()  # here
        with torch.no_grad():
            right = sum((self.model(x).argmax(1) == y).sum().item() for x, y in loader)
        {back}
        return right
"""

HISTORY = """\
import torch

from project import make


def run(loader, scaler, optimizer):
    model, criterion, history = *make(), {{}}
    for data in loader:
        losses = criterion(model(data), data)
        scaler.scale(losses["total"]).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        for key in losses:
            history[key] = history.get(key, 0.0) + {kept} * len(data)  # here
    return history
"""

TERM = """\
class Agent:
    def optimize(self, generator):
        entropies = []
        for obs, act in generator:
            dist, value = self.policy(obs)
            entropy_loss = dist.entropy().mean()
            loss = -dist.log_prob(act).mean() - self.coef * entropy_loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            entropies.append({kept})  # here
        return entropies
"""

WINDOW = """\
import torch


def train(task, loader, optimizer, config):
    micro = 0
    for batch in loader:
        result = task.train_step(**batch)
        {divide}
        result.loss.backward()  # here
        micro += 1
        if micro == config.gradient_accumulate_steps:
            optimizer.step()
            optimizer.zero_grad()
            micro = 0
"""

CONTINUES = """\
import os

import torch

from project import Net, batches, measure

PATH = "net.pt"


def get_model():
    net, state = Net(), None
    if os.path.exists(PATH):
        {load}
    return net, state


def main():
    net, state = get_model()
    optimizer = torch.optim.Adam(net.parameters())
    {restore}
    for i, batch in enumerate(batches()):
        optimizer.zero_grad()
        measure(net(batch)).backward()
        optimizer.step()
        if i % 100 == 0:
            torch.save({saved}, PATH)  # here
"""

TESTER = """\
import torch


class Solver:
    def __init__(self, classifier, loader):
        self.classifier, self.loader = classifier, loader


class Tester(Solver):
    def exec(self):
        self.classifier.eval()
        right = 0
        for x, y in self.loader:
            {asked}
            right += logits.argmax(1).eq(y).sum().item()
        return right
"""

PAIRS = {
    "a class that is written for Python 2": (
        "FL802",
        PYTHON_2.format(first="pass"),
        PYTHON_2.format(first="super(Net, self).__init__()"),
    ),
    "an argument that is used as a network": (
        "FL802",
        GIVEN.format(first="pass"),
        GIVEN.format(first="nn.Module.__init__(self)"),
    ),
    "a teacher beside the model that is evaluated": (
        "FL809",
        TEACHER.format(rests="pass", back="pass"),
        TEACHER.format(rests="model.eval()", back="model.train()"),
    ),
    "an evaluation between updates, in a class that says no mode": (
        "FL809",
        BETWEEN.format(rests="pass", back="pass"),
        BETWEEN.format(rests="self._model.eval()", back="self._model.train()"),
    ),
    "a trainer whose own method is called train": (
        "FL809",
        OWN_LOOP.format(rests="pass", back="pass"),
        OWN_LOOP.format(rests="self.model.eval()", back="self.model.train()"),
    ),
    "train() in a step that is told whether to train": (
        "FL809",
        TOLD.format(mode="self.model.train()  # here"),
        TOLD.format(mode="self.model.train(not validation)"),
    ),
    "a module that holds its optimizer": (
        "FL804",
        HELD.format(back="pass"),
        HELD.format(back="self.model.train()"),
    ),
    "a dict of losses that is added up": (
        "FL401",
        HISTORY.format(kept="losses[key]"),
        HISTORY.format(kept="losses[key].item()"),
    ),
    "a term of the loss": (
        "FL401",
        TERM.format(kept="entropy_loss"),
        TERM.format(kept="entropy_loss.item()"),
    ),
    "a loss that a task computes": (
        "FL104",
        WINDOW.format(divide="pass"),
        WINDOW.format(divide="result.loss /= config.gradient_accumulate_steps"),
    ),
    "a training that continues by itself": (
        "FL701",
        CONTINUES.format(load="net = torch.load(PATH)", restore="pass", saved="net"),
        CONTINUES.format(
            load='state = torch.load(PATH); net.load_state_dict(state["net"])',
            restore='optimizer.load_state_dict(state["optimizer"]) if state else None',
            saved='{"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": i, "rng": torch.get_rng_state()}',
        ),
    ),
    "a tester derived from a class of the project": (
        "FL402",
        TESTER.format(asked="logits = self.classifier(x)  # here"),
        TESTER.format(asked="with torch.no_grad(): logits = self.classifier(x)"),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_found_before_the_repair_and_silent_after(name: str) -> None:
    code, wrong, right = PAIRS[name]
    line = next(i for i, row in enumerate(wrong.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(wrong) if f.code == code]
    assert [f.at.line for f in read_text(right) if f.code == code] == []
