"""Mistakes in the shape of right loops that nobody had read before they were broken, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

GAN = """\
import torch


class Trainer:
    def __init__(self, loaders, model, optimizer, scheduler):
        self.loaders, self.model = loaders, model
        self.optimizer, self.scheduler = optimizer, scheduler

    def train_epoch(self):
        for x, y in self.loaders["train"]:
            loss = torch.nn.functional.l1_loss(self.model["generator"](x), y)
            self.optimizer["generator"].zero_grad()
            loss.backward()
            {first}
            {second}
"""

KWARGS = """\
import torch
from torch.amp import GradScaler


def train_one_epoch(model, criterion, loader, optimizer, max_norm=0.0, **kwargs):
    scaler: GradScaler = kwargs.get("scaler", None)
    for x, y in loader:
        if scaler is not None:
            with torch.autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            {step}
            scaler.update()
            optimizer.zero_grad()
        else:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
"""

FLAG = """\
import os

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(config, data, model):
    distributed = False
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        device = "cpu"
    else:
        device = "cuda"
        distributed = True
    sampler = None
    if distributed:
        sampler = DistributedSampler(data)  # here
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(config.epochs):
        {call}
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

HANDED = """\
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, steps, epochs, loaders, sampler, model, optimizer, config):
        self.steps = steps
        self.epochs = epochs
        self.loaders = loaders
        self.sampler = sampler
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.finished = False
        self.best = 0.0
        self.name = config["name"]
        self.folder = config["folder"]
        self.losses = {{}}
        self.seen = 0

    def run(self):
        while True:
            self.epoch()
            if self.finished:
                break

    def epoch(self):
        for x, y in self.loaders["train"]:
            loss = torch.nn.functional.cross_entropy(self.model["net"](x), y)
            self.optimizer["net"].zero_grad()
            loss.backward()
            self.optimizer["net"].step()
            self.steps += 1
            if self.steps >= self.config["max_steps"]:
                self.finished = True
            if self.finished:
                return
        self.epochs += 1
        {call}


def main(config, data, model):
    sampler = {{"train": DistributedSampler(data)}}  # here
    loaders = {{"train": DataLoader(data, sampler=sampler["train"])}}
    optimizer = {{"net": torch.optim.Adam(model.parameters())}}
    Trainer(0, 0, loaders, sampler, {{"net": model}}, optimizer, config).run()


main({{"name": "a", "folder": "b", "max_steps": 100000}}, [], torch.nn.Linear(2, 2))
"""

OUTPUTS = """\
import torch


def train(model, loader, args, optimizer):
    criterion = torch.nn.CrossEntropyLoss()
    for i, (x, y) in enumerate(loader):
        outputs = model(x)
        loss = 0
        for output in outputs:
            loss += criterion(output, y)
        loss /= len(outputs)
        {divide}
        loss.backward()  # here
        if (i + 1) % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

ADAPTS = """\
import torch
from torch import nn


class Tuned(nn.Module):
    def forward(self, queries):
        with torch.enable_grad():
            self.prototypes.requires_grad_()
            optimizer = torch.optim.Adam([self.prototypes], lr=self.lr)
            for _ in range(self.steps):
                loss = nn.functional.cross_entropy(self.distance(self.support), self.labels)
                {clear}
                loss.backward()  # here
                optimizer.step()
        return self.distance(queries)
"""

LIMIT = """\
import torch


def main(args, model, loader, held_out):
    optimizer = torch.optim.Adam(model.parameters())
    if args.max_train_steps is None:
        args.max_train_steps = args.num_train_epochs * len(loader)
    step = 0
    for epoch in range(args.num_train_epochs):
        {mode}
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step >= args.max_train_steps:
                break
        model.eval()  # here
        with torch.no_grad():
            for x, y in held_out:
                print(model(x).argmax(1).eq(y).sum())
"""

UNSEEN_LOSS = """\
import torch
from somewhere import diffusion


def fit(loader, epochs):
    model = diffusion()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        total = 0.0
        for batch in loader:
            loss = model.training_loss(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += {kept}  # here
"""

CHOSEN = """\
import torch
from torch import nn


class Criterion(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        if weight is not None:
            self.criterion = nn.CrossEntropyLoss(weight=weight)
        else:
            self.criterion = nn.CrossEntropyLoss()

    def forward(self, logits, labels):
        return self.criterion({given}, labels)  # here
"""

INSIDE = """\
from torch import nn


def test_blocks():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(10, 10)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = {blocks}  # here

    assert Model()
"""

UNSCALED = """\
from torch.cuda.amp import GradScaler
from torch.nn.utils import clip_grad_norm_


class Optimizer:
    def __init__(self, optimizer, max_norm):
        self._optimizer, self._max_norm, self._scaler = optimizer, max_norm, None

    @classmethod
    def made(cls, optimizer, options):
        wrapped = cls(optimizer, options.max_norm)
        if options.half:
            wrapped._scaler = GradScaler()
        return wrapped

    def step(self):
        {unscale}
        for group in self._optimizer.param_groups:
            clip_grad_norm_(group["params"], self._max_norm)  # here
        if self._scaler is not None:
            # unscaled already, so this does not do it again
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
"""

RESUMES = """\
import torch


def save_checkpoint(model, optimizer, path):
    torch.save({{"state": model.state_dict(), "optimizer": optimizer.state_dict()}}, path)


def load_checkpoint(path, model, optimizer, lr):
    checkpoint = torch.load(path)  # here
    model.load_state_dict(checkpoint["state"])
    {restore}
    for group in optimizer.param_groups:
        group["lr"] = lr
    return model, optimizer
"""

OLD_FILES = """\
import torch


def train(args, net, loader):
    optimizer = torch.optim.Adam(net.parameters())
    start = 0
    if args.load:
        checkpoint = torch.load(args.load)  # here
        if "args" in checkpoint:
            net.load_state_dict(checkpoint["net"])
            {restore}
            start = checkpoint["epoch"]
        else:
            net.load_state_dict(checkpoint)
    for epoch in range(start, args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        state = {{"args": args, "net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}}
        torch.save(state, args.path)
"""

ANOMALY = """\
import torch

{switch}


def main():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""

GENERATOR, SCHEDULE = (
    'self.optimizer["generator"].step()',
    'self.scheduler["generator"].step()',
)
RESTORE = 'optimizer.load_state_dict(checkpoint["optimizer"])'
# code, the broken program, the right one
PAIRS = {
    "a scheduler out of a dict of them": (
        "FL109",
        GAN.format(first=SCHEDULE + "  # here", second=GENERATOR),
        GAN.format(first=GENERATOR, second=SCHEDULE),
    ),
    "a scaler out of the keywords that a caller gives": (
        "FL203",
        KWARGS.format(step="optimizer.step()  # here"),
        KWARGS.format(step="scaler.step(optimizer)"),
    ),
    "a sampler that a flag decides on, which a branch has turned": (
        "FL303",
        FLAG.format(call="pass"),
        FLAG.format(call="if distributed:\n            sampler.set_epoch(epoch)"),
    ),
    "a trainer that is handed dicts, until it has made enough steps": (
        "FL303",
        HANDED.format(call="pass"),
        HANDED.format(call='self.sampler["train"].set_epoch(self.epochs)'),
    ),
    "a mean over the outputs of a model is not one over micro-batches": (
        "FL104",
        OUTPUTS.format(divide="pass"),
        OUTPUTS.format(divide="loss = loss / args.accumulation_steps"),
    ),
    "a forward that trains": (
        "FL106",
        ADAPTS.format(clear="pass"),
        ADAPTS.format(clear="optimizer.zero_grad()"),
    ),
    "a limit of steps that is far away": (
        "FL804",
        LIMIT.format(mode="pass"),
        LIMIT.format(mode="model.train()"),
    ),
    "a loss that nobody sees being made, until its backward": (
        "FL401",
        UNSEEN_LOSS.format(kept="loss"),
        UNSEEN_LOSS.format(kept="loss.item()"),
    ),
    "a criterion that an if chooses, of one kind": (
        "FL606",
        CHOSEN.format(given="torch.softmax(logits, dim=1)"),
        CHOSEN.format(given="logits"),
    ),
    "classes inside a function": (
        "FL801",
        INSIDE.format(blocks="[Block() for _ in range(2)]"),
        INSIDE.format(blocks="nn.ModuleList([Block() for _ in range(2)])"),
    ),
    "a comment about unscaling unscales nothing": (
        "FL201",
        UNSCALED.format(unscale="pass"),
        UNSCALED.format(unscale="self._scaler.unscale_(self._optimizer)"),
    ),
    "anomaly mode at the top of a script": (
        "FL607",
        ANOMALY.format(switch="torch.autograd.set_detect_anomaly(True)  # here"),
        ANOMALY.format(switch="torch.autograd.set_detect_anomaly(False)"),
    ),
    "an optimizer that a load is given and only looks at": (
        "FL702",
        RESUMES.format(restore="pass"),
        RESUMES.format(restore=RESTORE),
    ),
    "a load that also takes files of an older kind": (
        "FL702",
        OLD_FILES.format(restore="pass"),
        OLD_FILES.format(restore=RESTORE),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_mistake_is_found_and_the_original_is_silent(name: str) -> None:
    code, wrong, right = PAIRS[name]
    line = next(i for i, row in enumerate(wrong.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(wrong) if f.code == code]
    assert [f.at.line for f in read_text(right) if f.code == code] == []
