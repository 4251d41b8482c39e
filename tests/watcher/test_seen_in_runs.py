"""Mistakes that a run shows besides its events: shapes and targets in the loss's graph, states that are cast, statistics that move.

The rules' own specimens, and scripts in which only the run knows: sizes that come from data, names that come from a model.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fallline.rules import all_rules, rule_by_code
from fallline.runs.series import Rank, Series

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once

# code → which of its wrong specimens run with torch alone
_SPECIMENS = {
    "FL131": (0, 2),
    "FL135": (0,),
    "FL136": (0, 1),
    "FL139": (0,),
    "FL216": (0,),
}
_SCRIPTS = {
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
_PLANTED = Path(__file__).parents[1] / "tuning" / "planted"  # for `fallline measure data`
NEW = {
    *("FL025", "FL126", "FL130", "FL131", "FL135", "FL136", "FL139", "FL140", "FL216"),
    *("FL407", "FL609", "FL708", "FL810", "FL811", "FL812"),
}


def _scripts() -> dict[str, str]:
    found = dict(_SCRIPTS)
    for code, numbers in _SPECIMENS.items():
        rule = rule_by_code(code)
        assert rule is not None
        found |= {f"{code}_{n}": rule.wrong[n] for n in numbers}
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(tmp_path_factory, "seen_in_runs", _scripts())


def _line_of_loss(code: str, text: str) -> set[int]:
    """A run reports at the backward or the step what the reader reports at the line that is wrong."""
    lines = list(enumerate(text.split("\n"), 1))
    marked = {n for n, line in lines if re.search(rf"#.*\b{code}\b", line)}
    return marked | {n for n, line in lines if ".backward(" in line or ".step()" in line}


@pytest.mark.parametrize("name", [n for n in _scripts() if not n.startswith("right")])
def test_a_run_shows_it(runs: Path, name: str) -> None:
    text = _scripts()[name]
    (code,) = set(re.findall(r"#.*?\b(FL\d{3})\b", text))
    found = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    lines = {f["line"] for f in found if f["code"] == code}
    said = (runs / f"{name}.watched").read_text()
    assert len(lines) == 1 and lines <= _line_of_loss(code, text), said
    assert {f["code"] for f in found if f["code"] in NEW} == {code}, said


@pytest.mark.parametrize(("second", "codes"), [(7, ["FL029"]), (8, [])])
def test_ranks_whose_loaders_start_from_one_seed(second: int, codes: list[str]) -> None:
    """Each rank writes its seed down; whoever reads the folder compares them."""
    rule = rule_by_code("FL029")
    assert rule is not None
    place = {"path": "train.py", "line": 3, "function": "main"}
    ranks = [
        Rank(n, {"world": 2, "loader seeds": [place | {"seed": seed}]})
        for n, seed in enumerate((7, second))
    ]
    assert [f.code for f in rule.check_series(Series(ranks=ranks))] == codes


@pytest.mark.parametrize("name", ["right", "right too"])
def test_what_is_right_is_left_alone(runs: Path, name: str) -> None:
    found = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    assert {f["code"] for f in found} & NEW == set(), (runs / f"{name}.watched").read_text()


def test_whatever_the_reader_and_a_run_see_is_shown_by_a_run() -> None:
    """Their own wrong scripts are for the reader, so test_detectors.py leaves them out."""
    both = {
        r.code for r in all_rules() if r._defines("check_series") and r._defines("check_syntax")
    }
    marked = {c for text in _scripts().values() for c in re.findall(r"#.*?\b(FL\d{3})\b", text)}
    planted = {path.read_text()[2:7] for path in _PLANTED.glob("*.py")}
    assert both - marked - planted == {"FL029"}, "FL029 needs several ranks and has a test here"
