"""Programs for test_read_alone: a wrong one, with its line marked, and its right twin."""

from __future__ import annotations

RESTS_INSIDE = (
    """\
import torch


class Fitting:
    def __init__(self, net, optim, train_loader, val_loader, every):
        self.net, self.optim, self.every = net, optim, every
        self.train_loader, self.val_loader = train_loader, val_loader

    def validate(self):
        self.net.eval()  # FL804
        with torch.no_grad():
            return sum(self.net(x).mean().item() for x in self.val_loader)

    def one_epoch(self):
        self.net.train()
        for step, (x, y) in enumerate(self.train_loader):
            if step % self.every == 0:
                self.validate()
            self.optim.zero_grad()
            loss = (self.net(x) - y).abs().mean()
            loss.backward()
            self.optim.step()
""",
    """\
import torch


class Fitting:
    def __init__(self, net, optim, train_loader, val_loader, every):
        self.net, self.optim, self.every = net, optim, every
        self.train_loader, self.val_loader = train_loader, val_loader

    def validate(self):
        self.net.eval()
        with torch.no_grad():
            return sum(self.net(x).mean().item() for x in self.val_loader)

    def one_epoch(self):
        for step, (x, y) in enumerate(self.train_loader):
            if step % self.every == 0:
                self.validate()
            self.net.train()
            self.optim.zero_grad()
            loss = (self.net(x) - y).abs().mean()
            loss.backward()
            self.optim.step()
""",
)

_SAMPLER = """\
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(options, make):
    for phase, part in options.items():
        if phase == "train":
            data = make(part)
            if part["dist"]:
                sampler = DistributedSampler(data, shuffle=part["shuffle"])  # FL303
                loader = DataLoader(data, batch_size=8, sampler=sampler)
            else:
                loader = DataLoader(data, batch_size=8, shuffle=True)
    solver = make("solver")
    for epoch in range(1000):
        for step, batch in enumerate(loader):
            solver.feed(batch)
            solver.improve()
"""
KEPT_SAMPLER = (
    _SAMPLER,
    _SAMPLER.replace("  # FL303", "").replace(
        "        for step", "        loader.sampler.set_epoch(epoch)\n        for step"
    ),
)

_METHOD = """\
import torch


class Trainer:
    def __init__(self, model, data):
        self._model, self._data = model, data

    def _forward(self, batch):
        return self._model.forward(batch)

    def _validate(self, batches):
        total = 0.0
        for batch in batches:
            out = self._forward(batch)  # FL402
            total += out["loss"].data.cpu().numpy()
        return total
"""
EVALUATED_BY_A_METHOD = (
    _METHOD,
    _METHOD.replace("  # FL402", "").replace(
        "    def _validate", "    @torch.no_grad()\n    def _validate"
    ),
)

SAVED_BY_SCRIPT = """\
import torch
import torchaudio

from nets import build

model = build("best")
model.eval()
with torch.randn(1):
    for path in open("files.txt"):
        wave, rate = torchaudio.load(path)
        out = model(wave)  # FL402
        torchaudio.save(path + ".out", out[0].cpu(), rate)
"""

_OWN_MODE = """\
import torch
from torch import nn


class Drop(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        return x * torch.bernoulli(torch.full_like(x, self.rate)) if self.training else x


class Heads(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.drops = []  # FL801
        self.heads = nn.ModuleList()
        for size in sizes:
            self.drops.append(Drop(0.1))
            self.heads.append(nn.Linear(8, size))

    def forward(self, x, task):
        return self.heads[task](self.drops[task](x))
"""
MODE_OF_ITS_OWN = (_OWN_MODE, _OWN_MODE.replace("[]  # FL801", "nn.ModuleList()"))

_UNSEEN = """\
import torch


def run(task, loader, config):
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    pending = 0
    for epoch in range(config.epochs):
        for batch in loader:
            task.train()
            result = task.train_step(**batch)
            result.loss.backward()  # FL104
            pending += 1
            if pending == config.accumulate_steps:
                optimizer.step()
                optimizer.zero_grad()
                pending = 0
"""
UNSEEN = (
    _UNSEEN,
    _UNSEEN.replace(
        "result.loss.backward()  # FL104", "(result.loss / config.accumulate_steps).backward()"
    ),
)

_HANDED = """\
import argparse

import torch

from regimes import Regime
from training import Trainer, save_checkpoint


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    model = make_model(args)
    optimizer = Regime(model, lr=0.1)
    trainer = Trainer(model, optimizer)
    for epoch in range(90):
        trainer.train(epoch)
        torch.save({"epoch": epoch, "state_dict": model.state_dict()}, "last.pt")  # FL701
"""
HANDED_OVER = (
    _HANDED,
    _HANDED.replace("  # FL701", "").replace(
        "model.state_dict()}",
        "model.state_dict(), 'optimizer': optimizer.state_dict(), 'rng': torch.get_rng_state()}",
    ),
)

UPDATED_NOWHERE = """\
class Steps:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def back(self, loss):
        self.scaler.scale(loss).backward()

    def go(self):
        self.scaler.step(self.optimizer)
        self.optimizer.zero_grad()
"""
