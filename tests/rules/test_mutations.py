"""Mistakes in the shape of real loops that were broken on purpose and missed at first, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

WRONG = {
    "two optimizers, and one clip for all of them before the second backward": (
        "FL102",
        """\
import torch


class Brain:
    def fit_batch(self, noisy, clean):
        loss = self.compute_d(noisy, clean)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)
        self.optimizer_d.step()
        self.optimizer_d.zero_grad()

        self.optimizer_g.zero_grad()
        loss = self.compute_g(self.modules.generator(noisy))
        torch.nn.utils.clip_grad_norm_(self.modules.parameters(), self.max_grad_norm)  # here
        loss.backward()
        self.optimizer_g.step()
        self.optimizer_d.zero_grad()
""",
    ),
    "a prepared scheduler between backward and step": (
        "FL109",
        """\
import torch
from accelerate import Accelerator


def train(model, loader, epochs):
    accelerator = Accelerator()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=epochs, steps_per_epoch=len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(epochs):
        for x, y in loader:
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            scheduler.step()  # here
            optimizer.step()
            optimizer.zero_grad()
""",
    ),
    "a loop that generates while autograd records": (
        "FL402",
        """\
import torch


def generate(model, tokens, count):
    model.eval()
    for _ in range(count):
        logits = model(tokens)  # here
        tokens = torch.cat([tokens, logits[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    return tokens


model = torch.nn.Linear(4, 4)
print(generate(model, torch.zeros(1, 4), 100))
""",
    ),
    "a window that a method of the options computes": (
        "FL106",
        """\
import torch
from options import TrainArgs


def fit(fabric, model, optimizer, batches, devices, train: TrainArgs):
    steps = count = 0
    while steps < train.max_steps:
        count += 1
        batch = next(batches)
        is_accumulating = count % train.gradient_accumulation_iters(devices) != 0
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
        fabric.backward(loss / train.gradient_accumulation_iters(devices))  # here
        if not is_accumulating:
            optimizer.step()
            steps += 1
""",
    ),
    "a scaler that the options turn on": (
        "FL204",
        """\
import torch


class Trainer:
    def __init__(self, model, optimizer, options):
        self.model, self.optimizer = model, optimizer
        self.precision = options.precision
        if options.mixed:
            self.precision = "fp16"
        if options.bfloat16:
            self.precision = "bf16"
        enabled = self.precision == "fp16" and options.device != "cpu"
        self.scaler = torch.amp.GradScaler("cuda", enabled=enabled)

    def step(self, x):
        self.scaler.scale(self.model(x).mean()).backward()
        self.scaler.step(self.optimizer)  # here
        self.optimizer.zero_grad()
""",
    ),
    "a total that lies in a tensor": (
        "FL401",
        """\
import torch


def train(model, loader, optimizer):
    totals = torch.zeros(2)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        totals[0] += loss  # here
        totals[1] += len(batch)
    return totals[0] / totals[1]
""",
    ),
    "layers of a class that the constructor is handed": (
        "FL801",
        """\
from functools import partial

from torch import nn


class Net(nn.Module):
    def __init__(self, widths, norm_layer=partial(nn.LayerNorm, eps=1e-6)):
        super().__init__()
        self.norms = [norm_layer(width) for width in widths]  # here

    def forward(self, xs):
        return [norm(x) for norm, x in zip(self.norms, xs)]
""",
    ),
    "copies of a layer, handed to a function that sets their weights": (
        "FL801",
        """\
import copy

from torch import nn


def start(layers):
    for layer in layers:
        nn.init.zeros_(layer.bias)


class Net(nn.Module):
    def __init__(self, layer, depth):
        super().__init__()
        self.layers = []  # here
        for _ in range(depth):
            self.layers.append(copy.deepcopy(layer))
        start(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    ),
}

RIGHT = {
    "a clip of one network, whose step comes after another network's backward": (
        "FL102",
        """\
import torch


class Agent:
    def __init__(self, parts, actor_optimizer, critic_optimizer):
        self.parts = parts
        self.actor_optimizer, self.critic_optimizer = actor_optimizer, critic_optimizer

    def update(self, x):
        self.critic_loss(x).backward()
        self.actor_optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(self.parts.parameters(), 1.0)
        self.actor_loss(x).backward()
        self.actor_optimizer.step()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()
""",
    ),
    "a list of activations, and one that a function registers": (
        "FL801",
        """\
from torch import nn


def registered(layers):
    return nn.ModuleList(layers)


class Net(nn.Module):
    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.acts = [act() for _ in range(3)]
        self.layers = [nn.Linear(2, 2)]
        self.layers.append(nn.Linear(2, 2))
        self.kept = registered(self.layers)
""",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    code, text = WRONG[name]
    here = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    assert [f.at.line for f in read_text(text) if f.code == code] == here


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    code, text = RIGHT[name]
    assert [f.at.line for f in read_text(text) if f.code == code] == []
