"""Mistakes in the shape of repairs that were missed when they were first read."""

from __future__ import annotations

WRONG = {
    "attention that is normalised over the heads and summed over the sequence": (
        "FL609",
        """\
import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.query, self.score = nn.Linear(width, width), nn.Linear(width, heads)
        self.heads = heads

    def forward(self, x):
        q = self.query(x)
        alphas = (self.score(q) / 2.0).softmax(dim=-1)  # here
        split = q.unflatten(-1, (self.heads, -1))
        return torch.einsum("b s h, b s h d -> b h d", alphas, split)
""",
    ),
    "attention of a batch that is normalised over the queries": (
        "FL609",
        """\
import torch
import torch.nn.functional as F


def attend(query, key, value, dropout):
    scores = torch.bmm(query, key.transpose(1, 2))
    attention = F.softmax(scores, dim=1)  # here
    attention = dropout(attention)
    return torch.bmm(attention, value)
""",
    ),
    "a checkpoint without the loss scale of apex": (
        "FL701",
        """\
import torch
from apex import amp


def package(model, optimizer=None, epoch=None):
    state = {"state_dict": model.state_dict()}
    if optimizer is not None:
        state["optim_dict"] = optimizer.state_dict()
    if epoch is not None:
        state["epoch"] = epoch + 1
    return state


def train(model, optim, loader, resume):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            with amp.scale_loss(model(x).mean(), optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        torch.save(package(model, optimizer=optimizer, epoch=epoch), "last.pt")  # here
""",
    ),
    "a clip of the parameters that apex copies": (
        "FL201",
        """\
import torch
from apex import amp


def train(model, loader, level):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        optimizer.step()
""",
    ),
    "a clip inside apex's scaling": (
        "FL201",
        """\
import torch
from apex import amp


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)  # here
        optimizer.step()
""",
    ),
    "a position that no later pass sets back": (
        "FL707",
        """\
import torch


def batches(files, resume_state):
    at = resume_state["file"] if resume_state is not None else 0
    while True:
        while at < len(files):  # here
            yield torch.load(files[at])
            at += 1
""",
    ),
    "the finished epoch is trained again": (
        "FL707",
        """\
import torch


def main(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]  # here
    for epoch in range(start, 10):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
""",
    ),
    "several optimizers that somebody else makes": (
        "FL104",
        """\
import torch


class Trainer:
    def __init__(self, model, optimizers, accumulate=1):
        self.model, self.optimizers, self.accumulate = model, optimizers, accumulate

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for index, batch in enumerate(loader):
                self.run_batch(batch, index)

    def run_batch(self, batch, index):
        loss = self.model(batch)["loss"]
        loss.backward()  # here
        if (index + 1) % self.accumulate == 0:
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
""",
    ),
    "a clip in a method of its own, before the scaler's step": (
        "FL201",
        """\
import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self, models):
        super().__init__()
        for index, model in enumerate(models):
            setattr(self, f"optimizer{index}", torch.optim.AdamW(model.parameters()))
            setattr(self, f"scaler{index}", torch.amp.GradScaler("cuda"))

    def update(self, model, index):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        optimizer, scaler = getattr(self, f"optimizer{index}"), getattr(self, f"scaler{index}")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    ),
    "state that goes into a copy": (
        "FL702",
        """\
import torch


def load(ema, path):
    ema.state_dict().update(torch.load(path))  # here
""",
    ),
    "a model that its own state replaces": (
        "FL702",
        """\
import torch


class Trainer:
    def save(self, step):
        torch.save({"step": step, "model": self.model.state_dict()}, "last.pt")

    def load(self):
        data = torch.load("last.pt")
        self.step = data["step"]
        self.model = data["model"]  # here
""",
    ),
    "a scheduler that the resume is not given": (
        "FL702",
        """\
import torch


def load_if_available(path, model, optimizer=None, scheduler=None):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    for name, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
        if thing is not None:
            thing.load_state_dict(saved[name])


def run(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    load_if_available("last.pt", model, optimizer)  # here
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        scheduler.step()
""",
    ),
    "codes that are chosen along the width": (
        "FL609",
        """\
import torch.nn.functional as F
from torch import einsum, nn


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(16, 8)

    def forward(self, logits):
        one_hot = F.gumbel_softmax(logits, tau=1.0)  # here
        return einsum("b n h w, n d -> b d h w", one_hot, self.codebook.weight)
""",
    ),
    "a validation whose labels are not shifted": (
        "FL012",
        """\
from torch.nn.functional import cross_entropy


def validate(model, data):
    ids, targets = data.next()
    logits = model(ids)
    return cross_entropy(logits, targets)  # here


def train(model, optimizer, data):
    ids, targets = data.next()
    logits = model(ids)
    loss = cross_entropy(logits[..., :-1, :], targets[..., 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    "a hook that makes zeros of NaN": (
        "FL608",
        """\
import torch


def prepare(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: torch.nan_to_num(grad))  # here
""",
    ),
    "a schedule that counts micro-batches, which Accelerate does not": (
        "FL130",
        """\
from accelerate import Accelerator
from diffusers.optimization import get_scheduler


def main(args, model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    scheduler = get_scheduler(
        args.schedule,
        optimizer=optimizer,
        num_training_steps=args.max_train_steps * args.gradient_accumulation_steps,  # here
    )
    return accelerator.prepare(model, optimizer, loader, scheduler)
""",
    ),
    "a dropout that is written by hand": (
        "FL805",
        """\
from torch import nn


class EmbeddingDropout(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, x):
        mask = x.new_empty(x.size(1), 1).bernoulli_(1 - self.dropout)  # here
        return mask * x / (1 - self.dropout)
""",
    ),
    "layers that are dropped in every mode": (
        "FL805",
        """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.layerdrop = nn.Linear(2, 2), 0.1

    def forward(self, x):
        if torch.rand(1).item() < self.layerdrop:  # here
            return x
        return self.layer(x)
""",
    ),
}
