"""Mistakes that a name, a wrapper or a framework hid: each program is wrong as it stands, and right with one line changed."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"

# `args.get` is no network, and what it returns is a count
FROM_A_CONFIG = """\
def train(model, optimizer, loader, args):
    micro = args.get("micro_batch", -1)
    for x, y in loader:
        optimizer.zero_grad()
        for j in range(0, len(x), micro):
            loss = F.mse_loss(model(x[j : j + micro]), y[j : j + micro])
            {scaled}.backward()
        optimizer.step()
"""

# a call that makes a model runs none, so what it gives can be trained
CONSTRUCTED = """\
class Trainer:
    def __init__(self, spec):
        self.spec = spec

    def train(self, steps):
        model = self.spec.construct_model().cuda()
        optimizer, scheduler = self.spec.create_optimizer(model.parameters())
        for step in range(steps):
            loss = self.spec.objective(model)["loss"]
            {first}
            {second}
            optimizer.step()
"""

# the same network in two modules: the optimizer holds it whatever its owners are called
IN_TWO = """\
class Noise(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return F.mse_loss(self.net(x), x)


class Sample(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net


def train(loader):
    net = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(net.parameters())
    noise, sample = Noise(net), Sample(net)
    for x in loader:
        optimizer.zero_grad()
        loss = noise(x)
        {first}
        {second}
        optimizer.step()
"""

# what a model returns under a name is what it computed
UNDER_A_NAME = """\
from transformers.modeling_outputs import CausalLMOutput


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x, labels):
        logits = self.head(x)
        return CausalLMOutput(loss=F.cross_entropy(logits, labels), logits=logits)


def train(loader):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(loader):
        loss = model(x, y).loss
        {scaled}.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

ENGINE = """\
from ignite.engine import Engine


def trainer(model, optimizer, criterion):
    def update(engine, batch):
        x, y = batch
        loss = criterion(model(x), y)
        {first}
        {second}
        optimizer.step()

    return Engine(update)
"""

NO_SYNC = """\
def train(model, optimizer, loader):
    for x, y in loader:
        with model.no_sync(){joined} torch.autocast("cuda"):
            F.mse_loss(model(x), y).backward()
"""

BACKWARD, CLEAR = "loss.backward()", "optimizer.zero_grad()"
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("code", "text", "wrong", "right"),
    [
        ("FL104", FROM_A_CONFIG, {"scaled": "loss"}, {"scaled": "(loss * micro / len(x))"}),
        (
            "FL105",
            CONSTRUCTED,
            {"first": BACKWARD, "second": CLEAR},
            {"first": CLEAR, "second": BACKWARD},
        ),
        ("FL102", IN_TWO, {"first": CLIP, "second": BACKWARD}, {"first": BACKWARD, "second": CLIP}),
        ("FL104", UNDER_A_NAME, {"scaled": "loss"}, {"scaled": "(loss / 4)"}),
        (
            "FL105",
            ENGINE,
            {"first": BACKWARD, "second": CLEAR},
            {"first": CLEAR, "second": BACKWARD},
        ),
        ("FL301", NO_SYNC, {"joined": " and"}, {"joined": ","}),
    ],
)
def test_found_and_silent_when_right(
    code: str, text: str, wrong: dict[str, str], right: dict[str, str]
) -> None:
    assert code in {f.code for f in read_text(HEAD + text.format(**wrong))}
    assert code not in {f.code for f in read_text(HEAD + text.format(**right))}
