"""Mistakes of the kinds that were missed in repairs that nobody had read, and right code that looks like them."""

from __future__ import annotations

WRONG = {
    "weights that are loaded to be used, in train mode": (
        "FL809",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x):
        return self.body(x)


def recognize(path, samples):
    model = Net().cuda()
    model.load_state_dict(torch.load(path))
    with torch.no_grad():
        return [model(x).argmax(1) for x in samples]  # here
""",
    ),
    "a predictor that keeps its model in train mode": (
        "FL809",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.conv(x))


class Predictor:
    def __init__(self, path):
        self.model = Net()
        state = torch.load(path)
        self.model.load_state_dict(state["model"])

    def __call__(self, image):
        with torch.no_grad():
            return self.model(image)  # here
""",
    ),
    "an evaluation script whose function runs the model it is given": (
        "FL809",
        """\
import torch
import torchvision


def accuracy(model, loader):
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right


def main(path, loader):
    model = torchvision.models.resnet18(num_classes=10)
    model.load_state_dict(torch.load(path))
    print(accuracy(model, loader))  # here
""",
    ),
    "a mean over the boxes that a threshold leaves": (
        "FL602",
        """\
import torch.nn.functional as F


def box_loss(predicted, target, labels):
    positive = labels > 0
    return F.smooth_l1_loss(predicted[positive], target[positive])  # here
""",
    ),
    "a mean over the pixels that have a depth": (
        "FL602",
        """\
import torch


def depth_loss(predicted, depth):
    known = depth > 0
    difference = (predicted - depth).abs()
    loss = difference[known].mean()  # here
    return loss
""",
    ),
    "a vector of zeros that is divided by its length": (
        "FL602",
        """\
import torch


def contrastive_loss(left, right):
    left = left / left.norm(dim=-1, keepdim=True)  # here
    return -(left * right).sum(-1).mean()
""",
    ),
    "scores that compete with nobody": (
        "FL609",
        """\
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, tokens):
        weights = torch.softmax(self.score(tokens), dim=-1)  # here
        return (weights * tokens).sum(dim=1)
""",
    ),
    "a classifier with one output and a softmax": (
        "FL609",
        """\
from torch import nn

head = nn.Sequential(
    nn.Linear(8, 4),
    nn.ReLU(),
    nn.Linear(4, 1),
    nn.Softmax(dim=-1),  # here
)
""",
    ),
    "classes that are normalised over the batch": (
        "FL609",
        """\
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return F.log_softmax(self.head(x), dim=0)  # here
""",
    ),
}

RIGHT = {
    "a selection that somebody counts, one that is never empty, a sum": """\
import torch.nn.functional as F


def counted_loss(predicted, target, labels):
    positive = labels > 0
    if positive.sum() == 0:
        return predicted.sum() * 0
    return F.smooth_l1_loss(predicted[positive], target[positive])


def token_loss(logits, labels, attention_mask):
    return F.cross_entropy(logits[attention_mask], labels[attention_mask])


def summed_loss(predicted, target, labels):
    positive = labels > 0
    return F.smooth_l1_loss(predicted[positive], target[positive], reduction="sum")


def scaled_loss(left, right):
    left = left / left.norm(dim=-1, keepdim=True).clamp(min=1e-8)
    return -(left * right).sum(-1).mean()
""",
    "scores that compete over the sequence, and one bag of items": """\
import torch
from torch import nn


class Pool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, tokens):
        weights = torch.softmax(self.score(tokens), dim=1)
        return (weights * tokens).sum(dim=1)


class Bag(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, items):
        return torch.softmax(self.score(items), dim=0)


class Squeezed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, tokens):
        return torch.softmax(self.score(tokens).squeeze(-1), dim=-1)
""",
    "the function that gets the model sets its mode": """\
import torch
import torchvision


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


def main(path, loader):
    model = torchvision.models.resnet18(num_classes=10)
    model.load_state_dict(torch.load(path))
    print(accuracy(model, loader))
""",
    "weights to go on from, a model that is returned, one that goes to another library": """\
import torch
import torchvision
from somewhere import evaluate


def resume(path, x, y):
    model = torchvision.models.resnet18()
    model.load_state_dict(torch.load(path))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def load(path):
    model = torchvision.models.resnet18()
    model.load_state_dict(torch.load(path))
    return model


def measure(path):
    model = torchvision.models.resnet18()
    model.load_state_dict(torch.load(path))
    evaluate(model)
""",
    "no layer knows a mode, and a network that follows another": """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.body(x)


def answer(path, x):
    model = Net()
    model.load_state_dict(torch.load(path))
    with torch.no_grad():
        return model(x)


class Modal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))

    def forward(self, x):
        return self.body(x)


def work(shared, x):
    local = Modal()
    local.load_state_dict(shared.state_dict())
    return local(x)
""",
}
