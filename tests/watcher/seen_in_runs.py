"""Scripts in which only the run knows what is wrong: sizes that come from data, names that come from a model. The line is marked."""

from __future__ import annotations

__all__ = ["SCRIPTS"]

SCRIPTS = {
    # the target's shape is in the data, and the difference is written by hand
    "difference": """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.randn(64, 9)
for update in range(6):
    part = rows[torch.randperm(64)[:16]]
    loss = (model(part[:, :8]) - part[:, 8]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # FL139
    optimizer.step()
""",
    "half": """\
import torch

torch.manual_seed(0)
encoder, decoder = torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)
model = torch.nn.Sequential(encoder, decoder)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)  # FL126
for update in range(120):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    model.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "length": """\
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
epochs, every = 3, 4
lengths = {"cosine": 48}
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, **{"T_max": lengths["cosine"]})
for epoch in range(epochs):
    for i, inputs in enumerate(loader):
        (model(inputs).pow(2).mean() / every).backward()
        if (i + 1) % every == 0:
            optimizer.step()
            scheduler.step()  # FL130
            optimizer.zero_grad()
""",
    "cast": """\
import copy

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
saved = copy.deepcopy(optimizer.state_dict())
model.to(torch.bfloat16)
optimizer.load_state_dict(saved)  # FL708
""",
    "statistics": """\
import torch
from torch import nn
from torch.nn import functional as F

options = {"training": True}


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(8))
        self.register_buffer("running_var", torch.ones(8))
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(F.batch_norm(x, self.running_mean, self.running_var, **options))


model = Norm()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for update in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(16, 8))  # FL810
""",
    "names": """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(self.ln_1(x))


model = nn.Sequential(Block(), nn.Linear(8, 1))
exempt = ["bias", "LayerNorm.weight"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(e in n for e in exempt)], "weight_decay": 0.1},
    {"params": [p for n, p in model.named_parameters() if any(e in n for e in exempt)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)  # FL140
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
""",
    "workers": """\
import torch
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
options = {"num_workers": 2, "batch_size": 8}
for inputs in DataLoader(Rows(torch.randn(32, 8)), **options):  # FL025
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
    # different indices, one seed
    "drawn by workers": """\
import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.randn(8)


def start(worker):
    torch.manual_seed(1)


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs in DataLoader(Noise(), batch_size=8, num_workers=2, worker_init_fn=start):  # FL025
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
    # the options come from a configuration, dropout is a function
    "recomputed": """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

options = {"use_reentrant": False, "preserve_rng_state": False}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.1, self.training)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.block = nn.Linear(8, 8), Block()

    def forward(self, x):
        x = checkpoint(self.plain, x, **options)
        return checkpoint(self.block, x, **options)  # FL407


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
""",
    "softmax": """\
import torch
from torch import nn

torch.manual_seed(0)
options = {"dim": 0}
model = nn.Sequential(nn.Linear(8, 5), nn.LogSoftmax(**options))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    loss = nn.NLLLoss()(model(torch.randn(16, 8)), torch.randint(0, 5, (16,)))
    loss.backward()  # FL609
    optimizer.step()
""",
    "actions": """\
import torch
from torch import nn

torch.manual_seed(0)
options = {"dim": 0}
policy = nn.Sequential(nn.Linear(8, 5), nn.Softmax(**options))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    taken = policy(torch.randn(16, 8)).gather(1, torch.randint(0, 5, (16, 1))).squeeze(1)
    loss = -(taken.log() * torch.randn(16)).mean()
    loss.backward()  # FL609
    optimizer.step()
""",
    "places": """\
import torch
from torch import nn


def stack(make, depth):
    layer = make()
    layers = []
    for _ in range(depth):
        layers.append(layer)
    return nn.Sequential(*layers)  # FL811


model = stack(lambda: nn.Linear(8, 8), 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
""",
    "blocks": """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x).relu()


inner = nn.Linear(8, 8)
blocks = []
while len(blocks) < 3:
    blocks.append(Block(inner))
model = nn.Sequential(*blocks)  # FL811
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
""",
    "table": """\
import torch
from torch import nn


def positions(length, size):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)


class Embed(nn.Module):
    "Adds positions, which are fixed."

    def __init__(self):
        super().__init__()
        self.where = nn.Parameter(positions(16, 8))  # FL812
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x + self.where)


model = Embed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 16, 8)).pow(2).mean().backward()
    optimizer.step()
""",
    "feedback": """\
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def factor_of(epoch, epochs=12, power=0.9):
    return (1 - epoch / epochs) ** power


for epoch in range(12):
    for group in optimizer.param_groups:
        group.update(lr=group["lr"] * factor_of(epoch))
    for update in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()  # FL135
""",
    "levels": """\
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(12):
    decays = epoch // 4
    for group in optimizer.param_groups:
        group.update(lr=group["lr"] * 0.5**decays)
    for update in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()  # FL135
""",
    # by batch, so that it begins again in each epoch
    "by batch": """\
import math

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in range(10):
        for group in optimizer.param_groups:
            group.update(lr=group["lr"] * (1 + math.cos(math.pi * batch / 10)) / 2)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()  # FL135
""",
    # a target network that is in the optimizer by mistake, and whose value keeps its graph
    "network": """\
import copy

import torch
from torch import nn

torch.manual_seed(0)
online = nn.Linear(4, 2)
target = copy.deepcopy(online)
optimizer = torch.optim.SGD([*online.parameters(), *target.parameters()], lr=0.01)
for update in range(4):
    state, following, reward = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
    value = reward + 0.99 * target(following).max(1)[0]
    loss = nn.functional.mse_loss(online(state).max(1)[0], value)
    optimizer.zero_grad()
    loss.backward()  # FL131
    optimizer.step()
""",
    "student": """\
import torch
from torch import nn

torch.manual_seed(0)
teacher, student = nn.Linear(8, 8), nn.Linear(8, 8)
optimizer = torch.optim.SGD([*teacher.parameters(), *student.parameters()], lr=0.01)
for update in range(4):
    inputs = torch.randn(16, 8)
    teacher_output = teacher(inputs)
    loss = nn.functional.mse_loss(student(inputs), teacher_output)  # FL131
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    # what all of these rules must leave alone
    "right": """\
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
target = copy.deepcopy(model).requires_grad_(False).eval()
norms = [p for p in model.parameters() if p.ndim < 2]
groups = [{"params": [p for p in model.parameters() if p.ndim > 1]}, {"params": norms, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)
for epoch in range(3):
    model.train()
    for inputs in loader:
        scores = model(inputs).squeeze(1)
        values = torch.rand(16) + 0.9 * target(inputs).squeeze(1)
        pairs = scores.unsqueeze(1) - scores
        loss = F.mse_loss(scores, values) + F.relu(1 - pairs).mean() + F.mse_loss(model(inputs), model(-inputs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 8))
optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
""",
    "right too": """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def positions(length, size):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Net(nn.Module):
    "Fixed positions, and learned ones that begin as noise."

    def __init__(self, share=True):
        super().__init__()
        act = nn.PReLU()
        self.fixed = nn.Parameter(positions(16, 8), requires_grad=False)
        self.learned = nn.Parameter(0.02 * torch.randn(16, 8))
        shared = nn.Linear(8, 8)
        self.again = nn.Sequential(shared, nn.Tanh(), shared)
        self.body = nn.Sequential(nn.Linear(8, 8), act, nn.Dropout(0.1), nn.Linear(8, 8), act)
        head = nn.Linear(8, 5)
        if share:
            self.heads = nn.ModuleList([head] * 2)
        else:
            self.heads = nn.ModuleList([nn.Linear(8, 5) for _ in range(2)])

    def forward(self, x):
        x = checkpoint(nn.functional.relu, x + self.fixed + self.learned, use_reentrant=False, preserve_rng_state=False)
        x = self.again(checkpoint(self.body, x, use_reentrant=False))
        weights = torch.softmax(x.mean(2), dim=1)
        x = (weights.unsqueeze(2) * x).sum(1)
        return sum(head(x) for head in self.heads)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24)
for update in range(24):
    first, second = model(torch.randn(4, 16, 8)), model(torch.randn(4, 16, 8))
    classes = torch.randint(0, 5, (4,))
    chances, own = first.softmax(1), second.softmax(1).detach()
    entropy = F.cross_entropy(first, chances)
    both = F.cross_entropy(first, second.softmax(1)) + F.cross_entropy(second, first.softmax(1))
    loss = F.nll_loss(F.log_softmax(first, 1), classes) + F.cross_entropy(second, own) + 0.1 * (entropy + both)
    loss = loss - first.log_softmax(1).gather(1, classes[:, None]).mean() + F.mse_loss(first, second)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
for decay in (lambda n: 0.9**n, lambda n: (1 - n / 12) ** 0.9, lambda n: 1 / (1 + 0.5 * n), lambda n: 0.1 ** (n // 4)):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for epoch in range(12):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * decay(epoch)
        for update in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 16, 8)), torch.randint(0, 5, (4,))).backward()
            optimizer.step()
""",
}
