"""Mistakes in the shape of repairs that were missed when they were first read, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

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
}

RIGHT = {
    "attention, and an assignment to clusters": """\
import torch
import torch.nn.functional as F


def attend(query, key, value, dropout):
    attention = dropout(F.softmax(torch.bmm(query, key.transpose(1, 2)), dim=2))
    return torch.bmm(attention, value) + torch.softmax(query @ key.mT, dim=-1) @ value


def pooled(scores, features):
    soft_assign = F.softmax(scores, dim=1)
    return torch.einsum("bkn,bnd->bkd", soft_assign, features)


def attend_by_letters(scores, values):
    attention = scores.softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attention, values)
""",
    "apex, as it is meant": """\
import torch
from apex import amp


def train(model, loader, level):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            with amp.scale_loss(model(x).mean(), optimizer) as scaled:
                scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "amp": amp.state_dict(), "epoch": epoch}, "last.pt")
""",
    "apex at the level that keeps the model's own parameters": """\
import torch
from apex import amp


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        optimizer.zero_grad()
        with amp.scale_loss(model(x).mean(), optimizer) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    "positions that begin again, and an epoch that is counted on": """\
import torch


def batches(files, resume_state):
    at = resume_state["file"] if resume_state is not None else 0
    while True:
        while at < len(files):
            yield torch.load(files[at])
            at += 1
        at = 0


def main(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 10):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
""",
}
NEW = frozenset(code for code, _ in WRONG.values())


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    code, text = WRONG[name]
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(text) if f.code == code]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_silent(name: str) -> None:
    found = [(f.code, f.at.line, f.severity) for f in read_text(RIGHT[name]) if f.code in NEW]
    assert [f for f in found if f[2].value != "info" or f[0] == "FL707"] == []
