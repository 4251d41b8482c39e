"""Losses, targets and labels that are known only by what they are called or where they are, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

WRONG = {
    "a length in a forward pass": (
        "FL602",
        """\
import torch
from torch import nn


class Cosine(nn.Module):
    def forward(self, a, b):
        lengths = a.norm(dim=1, keepdim=True)
        others = b.norm(dim=1, keepdim=True)
        return (a @ b.t()) / (lengths @ others.t())  # here
""",
    ),
    "labels that are changed after the mask was made of them": (
        "FL602",
        """\
import torch


def batch_logps(logits, labels):
    mask = labels != -100
    labels[labels == -100] = 0
    chosen = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (chosen * mask).sum(-1) / mask.sum(-1)  # here
""",
    ),
    "pairs that are counted by filling zeros": (
        "FL602",
        """\
import torch


def pair_loss(similarity, rows, columns, n):
    positives = torch.zeros(n, n)
    positives[rows, columns] = 1
    counts = positives.sum(dim=1)
    return ((similarity * positives).sum(dim=1) / counts).mean()  # here
""",
    ),
    "a value that one branch sets": (
        "FL602",
        """\
import torch
from torch import nn


class Mix(nn.Module):
    def forward(self, sources, weights=None):
        if weights is None:
            weights = (sources**2).mean(dim=-1)
        return weights / weights.sum(dim=1)  # here
""",
    ),
    "the magnitude of a spectrum, by a helper": (
        "FL603",
        """\
import torch


def magnitude(x, dim=1):
    return torch.stack(torch.chunk(x, 2, dim=dim), dim=-1).pow(2).sum(-1).pow(0.5)  # here
""",
    ),
    "a log-likelihood": (
        "FL601",
        """\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def log_p(self, x, z):
        mean = self.net(z)
        return torch.sum(x * torch.log(mean), -1)  # here
""",
    ),
    "a logarithm masked by a product": (
        "FL610",
        """\
import torch


def surrogate(x, alpha):
    left = (x < 0.0).to(x)
    return left * torch.sigmoid(alpha * x) + (1.0 - left) * torch.log(x + 1.0)  # here
""",
    ),
    "masks of rows and columns": (
        "FL611",
        """\
import torch
from einops import rearrange


def attend(scores, query_mask, key_mask):
    both = rearrange(query_mask, "b i -> b () i ()") * rearrange(key_mask, "b j -> b () () j")
    return scores.masked_fill(~both, float("-inf")).softmax(dim=-1)  # here
""",
    ),
    "ignored labels in a mean": (
        "FL016",
        """\
import torch
import torch.nn.functional as F


def chunked_loss(logits, targets):
    losses = [F.cross_entropy(a, b, ignore_index=-1, reduction="none") for a, b in zip(logits, targets)]
    return torch.cat(losses).mean()  # here
""",
    ),
    "a prediction without a graph, for a loss by its name": (
        "FL136",
        """\
def train(model, loader, criterion, optimizer):
    for inputs, labels in loader:
        outputs = model(inputs)
        loss = criterion(outputs.detach(), labels[:4].squeeze())  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    ),
    "a value network that learns from another network's graph": (
        "FL131",
        """\
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.qf = nn.Linear(8, 1)
        self.vf = nn.Linear(4, 1)

    def train(self, obs, both):
        v_pred = self.vf(obs)
        v_target = self.qf(both)
        vf_loss = nn.functional.mse_loss(v_pred, v_target)  # here
        vf_loss.backward()
""",
    ),
    "logits normalised over the batch": (
        "FL609",
        """\
import torch.nn.functional as F


def distillation_loss(student_logits, teacher_logits, temperature):
    teacher = F.softmax(teacher_logits, dim=-1)
    return F.kl_div(F.log_softmax(student_logits / temperature, dim=0), teacher)  # here
""",
    ),
    "an input that only a kernel uses": (
        "FL901",
        """\
import torch
import _C


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, offset, step):
        ctx.offset = offset  # here
        ctx.step = step
        return _C.forward(offset, step)

    @staticmethod
    def backward(ctx, grad):
        return _C.backward(grad, ctx.offset), None
""",
    ),
}
RIGHT = {
    "a test of the values is a guard": """\
import torch


def batch_logps(losses, weights):
    weights[weights < 1e-8] = 1e-8
    return (losses * weights).sum() / weights.sum()
""",
    "data are normalised in their own file": """\
def pixels(images, mask):
    return images / 255.0
""",
    "one row of logits": """\
import torch.nn.functional as F


def row_loss(logits, labels):
    return sum(-F.log_softmax(logits[i], dim=0)[labels[i]] for i in range(len(labels)))
""",
    "a teacher comes first": """\
def train(model, teacher, loader, criterion, optimizer):
    for inputs, _ in loader:
        wanted = teacher(inputs)
        loss = criterion(wanted.detach(), model(inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "the input of the logarithm is chosen first": """\
import torch


def surrogate(x, alpha):
    left = (x < 0.0).to(x)
    return left * torch.sigmoid(alpha * x) + (1.0 - left) * torch.log(x.clamp(min=0.0) + 1.0)
""",
    "ignored labels are counted": """\
import torch.nn.functional as F


def mean_loss(logits, targets):
    losses = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
    return losses.sum() / (targets != -1).sum().clamp(min=1)
""",
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    code, text = WRONG[name]
    line = next(n for n, said in enumerate(text.split("\n"), 1) if said.endswith("# here"))
    assert [f.at.line for f in read_text(text) if f.code == code] == [line]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_left_alone(name: str) -> None:
    codes = {code for code, _ in WRONG.values()}
    assert [(f.code, f.at.line) for f in read_text(RIGHT[name]) if f.code in codes] == []
