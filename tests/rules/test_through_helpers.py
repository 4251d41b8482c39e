"""Mistakes that a helper, a constructor, a method or a list carries to the place where they happen, and right code of the same form."""

from __future__ import annotations

import pytest

from fallline.finding import Severity
from fallline.verdict.reading import read_text

PAIRS = {
    "a criterion and a model that a constructor is given": (
        "FL606",
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return {out}


class Learner:
    def __init__(self, net, criterion=None):
        self.net, self.criterion = net, nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def update(self, x, y):
        loss = self.criterion(self.net(x), y)  # here
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


Learner(Net()).update(torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
""",
        {"out": ("torch.softmax(self.head(x), dim=-1)", "self.head(x)")},
    ),
    "layers that a builder adds to a list": (
        "FL606",
        """\
import torch
from torch import nn


def network(width, last):
    parts = [nn.Linear(8, width), nn.ReLU()]
    parts.append(nn.Linear(width, 4))
    parts += [{last}]
    return nn.Sequential(*parts)


model = network(16, None)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
for x, y in torch.utils.data.DataLoader([(torch.randn(8), 1)] * 8, batch_size=4):
    optimizer.zero_grad()
    criterion(model(x), y).backward()  # here
    optimizer.step()
""",
        {"last": ("nn.Softmax(dim=1)", "nn.Dropout(0.1)")},
    ),
    "a function that returns the probabilities": (
        "FL606",
        """\
import torch
import torch.nn.functional as F


def predict(model, x):
    out = model(x)
    return {out}


def train(model, loader, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(predict(model, x), y)  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        {"out": ("F.softmax(out, dim=1)", "out")},
    ),
    "rows that a loop takes out of a softmax": (
        "FL609",
        """\
import torch


def top(model, batch):
    scores = torch.softmax(model(batch), dim={dim})  # here
    return [int(row.argmax()) for row in scores]
""",
        {"dim": ("0", "1")},
    ),
    "the layer of a policy that is handed over": (
        "FL609",
        """\
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.head = nn.Linear(16, 3)
        self.normalise = nn.Softmax(dim={dim})

    def forward(self, x):
        return self.normalise(self.head(torch.relu(self.body(x))))  # here


def agreement(policy, loader):
    same = 0
    for states, actions in loader:
        same += (policy(states).argmax(dim=1) == actions).sum().item()
    return same
""",
        {"dim": ("0", "1")},
    ),
    "weights that are spread over the values": (
        "FL609",
        """\
import torch
from torch import nn


class Summary(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.score = nn.Linear(size, 1)

    def forward(self, frames):
        attention = torch.softmax(self.score(frames).squeeze(-1), dim={dim})  # here
        return (attention[:, :, None] * frames).sum(dim=1)
""",
        {"dim": ("0", "1")},
    ),
    "a head that replaces the one of torchvision": (
        "FL612",
        """\
import torch
from torch import nn
from torchvision import models

network = models.resnet18(weights="DEFAULT")
network.fc = nn.Sequential(nn.Linear(512, 10), {last})
loss_fn = nn.NLLLoss()


def step(x, y, optimizer):
    loss = loss_fn(network(x), y)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        {"last": ("nn.Dropout(0.2)", "nn.LogSoftmax(dim=1)")},
    ),
    "a block that a method is given to recompute": (
        "FL407",
        """\
from torch import nn
from torch.utils.checkpoint import checkpoint


def block(size, rate):
    return nn.Sequential(nn.Linear(size, size), nn.ReLU(), {layer})


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([block(8, 0.1) for _ in range(3)])

    def _again(self, part, x):
        return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False)  # here

    def forward(self, x):
        for number, part in enumerate(self.stages):
            x = self._again(part, x)
        return x
""",
        {"layer": ("nn.Dropout(rate)", "nn.LayerNorm(size)")},
    ),
    "a method that builds before the module is there": (
        "FL802",
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self, size):
        {first}
        {second}

    def _layers(self, size):
        self.inner = nn.Linear(size, size)  # here

    def forward(self, x):
        return self.inner(x)
""",
        {
            "first": ("self._layers(size)", "super().__init__()"),
            "second": ("super().__init__()", "self._layers(size)"),
        },
    ),
    "a limit in the body of the class": (
        "FL113",
        """\
import torch


class Learner:
    limit = {limit}

    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.limit)  # here
        self.optimizer.step()
""",
        {"limit": ("1e-4", "2.0")},
    ),
    "two models that were handed over, each with its optimizer": (
        "FL115",
        """\
import torch


def alternate(generator, critic, loader):
    first = torch.optim.Adam(generator.parameters(), lr=1e-4)
    second = torch.optim.Adam(critic.parameters(), lr=1e-4)
    for real in loader:
        second.zero_grad()
        (critic(generator(real).detach()) - critic(real)).mean().backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        second.step()
        first.zero_grad()
        (-critic(generator(real))).mean().backward()
        torch.nn.utils.clip_grad_norm_({clipped}.parameters(), 1.0)  # here
        first.step()
""",
        {"clipped": ("critic", "generator")},
    ),
    "a window of three or five, and data that is not divisible by it": (
        "FL107",
        """\
import torch


def train(model, loader, optimizer, criterion):
    for epoch in range(4):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / 5).backward()
            if {test}:  # here
                optimizer.step()
                optimizer.zero_grad()
""",
        {"test": ("(i + 1) % 5 == 0", "(i + 1) % 5 == 0 or i + 1 == len(loader)")},
    ),
    "an optimizer that is handed over and forgotten": (
        "FL118",
        """\
import torch


def epoch(network, batches, optimizer, criterion):
    for x, y in batches:
        network.zero_grad()
        loss = criterion(network(x), y)
        loss.backward()  # here
        {then}
""",
        {"then": ("print(loss.item())", "optimizer.step()")},
    ),
    "an update in a helper that is called at the end of the window": (
        "FL130",
        """\
import torch


class Learner:
    def __init__(self, net, loader, epochs, every):
        self.net, self.loader, self.epochs, self.every = net, loader, epochs, every
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.plan = self._plan()

    def _plan(self):
        steps = {steps}
        return torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=steps)  # here

    def _update(self):
        self.opt.step()
        self.plan.step()
        self.opt.zero_grad()

    def fit(self):
        for epoch in range(self.epochs):
            for i, (x, y) in enumerate(self.loader):
                loss = torch.nn.functional.mse_loss(self.net(x), y) / self.every
                loss.backward()
                if (i + 1) % self.every == 0 or i + 1 == len(self.loader):
                    self._update()
""",
        {
            "steps": (
                "self.epochs * len(self.loader)",
                "self.epochs * (len(self.loader) // self.every)",
            )
        },
    ),
    "a save that nobody keeps to one rank": (
        "FL305",
        """\
import torch


def keep(wrapped, folder):
    torch.save(wrapped.module.state_dict(), folder + "/last.pt")  # here


def fit(wrapped, loader, sampler, optimizer, folder, {told}):
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(wrapped(x), y).backward()
            optimizer.step()
        {test}keep(wrapped, folder)
""",
        {"told": ("device", "rank"), "test": ("", "if rank == 0: ")},
    ),
    "log-probabilities that a loop collects without a graph": (
        "FL022",
        """\
import torch


def reinforce(policy, environment, optimizer):
    state, log_probs, rewards = environment.reset(), [], []
    for _ in range(20):
        with {mode}:
            distribution = torch.distributions.Categorical(logits=policy(state))
        action = distribution.sample()
        with {mode}:
            log_probs.append(distribution.log_prob(action))
        state, reward = environment.act(action)
        rewards.append(reward)
    returns = torch.tensor(rewards)
    loss = -(torch.stack(log_probs) * returns).mean()  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        {"mode": ("torch.no_grad()", "torch.enable_grad()")},
    ),
    "targets that are padded with a class": (
        "FL016",
        """\
import torch
from torch.nn.utils.rnn import pad_sequence


def collate(samples):
    words, tags = zip(*samples)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True)


def train(tagger, dataset, optimizer):
    loss_fn = torch.nn.CrossEntropyLoss({option})
    for words, tags in torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=collate):
        loss = loss_fn(tagger(words).flatten(0, 1), tags.flatten())  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        {"option": ("", "ignore_index=0")},
    ),
    "adapters that are frozen with everything else": (
        "FL019",
        """\
import torch
from peft import LoraConfig, get_peft_model


def build(base):
    {before}
    adapted = get_peft_model(base, LoraConfig(r=4))
    {after}
    return adapted, torch.optim.AdamW(adapted.parameters())
""",
        {
            "before": ("pass", "base.requires_grad_(False)"),
            "after": ("adapted.requires_grad_(False)  # here", "adapted.train()"),
        },
    ),
    "a NaN that the mask asks about": (
        "FL610",
        """\
import torch


def masked_loss(prediction, target):
    known = torch.isfinite(target).float()
    error = torch.nn.functional.l1_loss(prediction, {given}, reduction="none")
    return (torch.nn.functional.l1_loss(prediction, {given}, reduction="none") * known).sum()  # here
""",
        {"given": ("target", "torch.nan_to_num(target)")},
    ),
    "one of three models that a loop forgets to clip": (
        "FL114",
        """\
import torch


class Learner:
    def __init__(self, reader, bridge, writer):
        self.reader, self.bridge, self.writer = reader, bridge, writer
        parameters = [*reader.parameters(), *bridge.parameters(), *writer.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)

    def update(self, x, y):
        loss = torch.nn.functional.mse_loss(self.writer(self.bridge(self.reader(x))), y)
        self.optimizer.zero_grad()
        loss.backward()
        for part in ({parts}):
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)  # here
        self.optimizer.step()
""",
        {
            "parts": (
                "self.reader, self.writer",
                "self.reader, self.bridge, self.writer",
            )
        },
    ),
    "a model that every update finds in eval mode": (
        "FL809",
        """\
import torch


def train(body, head, loader, epochs):
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for epoch in range(epochs):
        body.{mode}()  # here
        head.train()
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(head(body(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
""",
        {"mode": ("eval", "train")},
    ),
    "a part of a wrapped model that is called past its wrapper": (
        "FL309",
        """\
import torch


def train(network, loader, sampler, optimizer):
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss({called}(x), y)  # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if torch.distributed.get_rank() == 0:
        torch.save(network.module.state_dict(), "last.pt")
""",
        {"called": ("network.module", "network")},
    ),
    "returns that a loop adds up, against a column": (
        "FL139",
        """\
import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, states):
        return self.value(torch.relu(self.body(states)))


def update(critic, optimizer, states, rewards):
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = reward + 0.9 * total
        sums.insert(0, total)
    loss = nn.functional.mse_loss(critic(states){shape}, torch.tensor(sums))  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        {"shape": ("", ".squeeze(-1)")},
    ),
    "a model that was cast, and an epsilon behind it": (
        "FL209",
        """\
import torch

encoder = torch.nn.Linear(8, 8)
encoder = encoder.half().eval()


def normalised(x):
    out = encoder(x.half())
    return out / (out.abs().amax(dim=1, keepdim=True) + {epsilon})  # here
""",
        {"epsilon": ("1e-8", "1e-4")},
    ),
    "an update that owns its optimizer, in a program that clears nothing": (
        "FL106",
        """\
import torch


class Learner{base}:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())

    def update(self, x, y):
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        loss.backward()  # here
        self.optimizer.step()
""",
        {"base": ("", "(Framework)")},
    ),
}


def _filled(text: str, choices: dict[str, tuple[str, str]], which: int) -> str:
    for name, pair in choices.items():
        text = text.replace("{" + name + "}", pair[which])
    return text


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_found_where_it_happens(name: str) -> None:
    code, text, choices = PAIRS[name]
    wrong = _filled(text, choices, 0)
    line = next(i for i, row in enumerate(wrong.splitlines(), 1) if row.endswith("# here"))
    assert (code, line) in [(f.code, f.at.line) for f in read_text(wrong)]


@pytest.mark.parametrize("name", PAIRS)
def test_the_right_form_is_silent(name: str) -> None:
    code, text, choices = PAIRS[name]
    found = read_text(_filled(text, choices, 1))
    assert [f for f in found if f.code == code or f.severity is not Severity.INFO] == []


def test_parameters_that_a_list_spreads_are_cleared() -> None:
    found = read_text(
        """\
import torch


class Learner:
    def __init__(self, trunk, head):
        self.trunk, self.head = trunk, head
        self.all = [*trunk.parameters(), *head.parameters()]
        self.optimizer = torch.optim.Adam(self.all)

    def clear(self):
        for parameter in self.all:
            parameter.grad = None

    def fit(self, loader):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(self.head(self.trunk(x)), y)
            self.clear()
            loss.backward()
            self.optimizer.step()
"""
    )
    assert [f.code for f in found if f.severity is not Severity.INFO] == []
