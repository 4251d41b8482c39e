"""A warning rests on something seen; what only a name says, or what cannot hurt here, is a note or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.matters import matters
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

LOOP = """\
import torch
from torch import nn

model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(model(x).mean().item() for x in loader))
"""


def told(text: str, code: str) -> list[str]:
    """The severities of one rule's findings."""
    return [f.severity.value for f in read_text(text) if f.code == code]


@pytest.mark.parametrize(
    ("model", "severity"),
    [
        ("nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))", "error"),
        ("nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))", "info"),
        ("build()", "warning"),  # who knows what is in it
    ],
)
def test_eval_mode_matters_to_a_model_that_has_modes(model: str, severity: str) -> None:
    assert told(LOOP.format(model=model), "FL804") == [severity]


NET = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {layer}

    def forward(self, x):
        return self.inner(x)

class Net(nn.Module):
    def __init__(self, {given}):
        super().__init__()
        self.block = {block}

    def forward(self, x):
        return self.block(x)
"""


@pytest.mark.parametrize(
    ("layer", "given", "block", "severity"),
    [
        ("nn.Linear(4, 4)", "", "Block()", "info"),
        ("nn.BatchNorm1d(4)", "", "Block()", "error"),
        ("nn.LSTM(4, 4, 2, dropout=0.1)", "", "Block()", "error"),
        ("nn.LSTM(4, 4)", "", "Block()", "info"),
        ("nn.Linear(4, 4)", "backbone=None", "backbone", "warning"),
    ],
)
def test_modes_are_looked_for_in_the_whole_class(
    layer: str, given: str, block: str, severity: str
) -> None:
    loop = LOOP.format(model="Net()").partition("from torch import nn\n")[2]
    assert told(NET.format(layer=layer, given=given, block=block) + loop, "FL804") == [severity]


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("def run(model, x):\n    return model.forward(x)\n", "info"),
        ("def run(model, x):\n    model.eval()\n    return model.forward(x)\n", "info"),
        (
            "def run(model, x):\n    return model.forward(x)\n\nnet = torch.nn.Linear(1, 1)\nrun(net, 1)\n",
            "info",
        ),
    ],
)
def test_a_model_is_one_that_is_used_as_one(text: str, severity: str) -> None:
    assert told("import torch\n" + text, "FL803") == [severity]


WINDOW = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
running = 0
for i, x in enumerate(loader):
    loss = model(x).mean() / 2
    running += loss
    loss.backward()
    if (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(running.item())
        {reset}
"""


@pytest.mark.parametrize(("reset", "severity"), [("running = 0", "info"), ("pass", "error")])
def test_a_sum_that_is_emptied_with_every_update_does_not_grow(reset: str, severity: str) -> None:
    assert told(WINDOW.format(reset=reset), "FL401") == [severity]


def test_one_pass_in_eval_mode_is_no_evaluation() -> None:
    text = LOOP.format(model="nn.Linear(4, 1)").partition("    with torch.no_grad")[0]
    assert told(text + "    print(model(x))\n", "FL402") == ["info"]
    assert told(text + "    for x in loader:\n        print(model(x))\n", "FL402") == ["warning"]


def test_none_among_batches_is_no_setting() -> None:
    text = """\
import torch

class Trainer:
    def __init__(self, model, compute):
        self.model, self.compute = model, compute
        self.optim = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit(self, loader):
        for batch in loader:
            self.optim.zero_grad()
            loss = self.compute(batch, self.model(batch))
            if loss is not None:
                loss.backward()
            self.optim.step()
"""
    assert told(text, "FL117") == []


def test_weights_to_begin_with_are_no_resume() -> None:
    text = """\
import torch

def resume_train(model, args, epochs):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if args.resume:
        state = torch.load("last.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
    else:
        weights = torch.load(args.weights)["model"]
        model.load_state_dict(weights)
    for epoch in range(start, epochs):
        model(1).backward()
        optimizer.step()
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
"""
    assert told(text, "FL702") == []


def test_a_schedule_that_catches_up_is_not_early() -> None:
    text = """\
import torch

def main(model, loader, start, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(start):
        scheduler.step()
    for epoch in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()

main(torch.nn.Linear(4, 1), torch.utils.data.DataLoader(torch.randn(8, 4)), 3, 9)
main(torch.nn.Linear(4, 1), torch.utils.data.DataLoader(torch.randn(8, 4)), 3, 9)
"""
    assert told(text, "FL109") == []


@pytest.mark.parametrize(("moved", "severity"), [("x.cuda()", "warning"), ("x.clone()", "info")])
def test_a_clock_is_wrong_about_work_on_the_device(moved: str, severity: str) -> None:
    text = f"""\
import time

import torch

warm = torch.ones(1).cuda()
def bench(x):
    a = {moved}
    start = time.time()
    b = torch.matmul(a, a)
    print(time.time() - start)
"""
    assert told(text, "FL503") == [severity]


def test_a_name_made_anew_is_where_it_was_made_last() -> None:
    text = """\
import time

import torch

x = torch.zeros(2, 3)
x = x.to("cuda" if torch.cuda.is_available() else "cpu")
print(x)
x = torch.randn(50, 50)
start = time.time()
_ = torch.matmul(x, x)
end = time.time()
print(end - start)
model = torch.nn.Linear(2, 3).to("cuda")
_ = print(model)
"""
    assert [(f.code, f.severity) for f in read_text(text)] == [("FL503", "info")]


def test_what_is_missing_is_told_where_the_loop_is(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "class Wrapper:\n"
        "    def __init__(self, optimizer):\n        self.optimizer = optimizer\n\n"
        "    def backward(self, loss):\n        loss.backward()\n\n"
        "    def step(self):\n        self.optimizer.step()\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\n\nfrom helper import Wrapper\n\n"
        "model = torch.nn.Linear(4, 1)\n"
        "wrapper = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for x in torch.utils.data.DataLoader(torch.randn(8, 4)):\n"
        "    loss = model(x).mean()\n"
        "    wrapper.backward(loss)\n"
        "    wrapper.step()\n"
    )
    paths = [str(tmp_path / name) for name in ("helper.py", "train.py")]
    readings = read_paths(paths, roots=[str(tmp_path)])
    found = [f.at for r in readings for f in r.findings if f.code == "FL106"]
    assert [(Path(at.path).name, at.line) for at in found] == [("train.py", 9)]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (b"import paddle\n# see https://pytorch.org/docs\nloss.backward()\n", False),
        (b"import paddle\nimport torch\nloss.backward()\n", True),
        (b"import tensorflow as tf\nfrom utils import *\nx = torch.ones(1)\n", True),
        (b"loss.backward()\n", True),
    ],
)
def test_another_framework_is_not_ours(text: bytes, ours: bool) -> None:
    assert matters(text) is ours


@pytest.mark.parametrize(("tells", "reported"), [("", ["error"]), ("compute_loss_func=sum", [])])
def test_a_trainer_that_is_told_not_to_divide(tells: str, reported: list[str]) -> None:
    text = f"""\
import torch
from transformers import Trainer

class Mine(Trainer):
    def __init__(self, model, args):
        super().__init__(model, args, {tells})

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"])
        loss = loss / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss
"""
    assert told(text, "FL129") == reported


def test_a_loop_of_nothing_but_steps_measures_the_optimizer() -> None:
    text = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 4)).sum().backward()
for _ in range(100):
    optimizer.step()
for _ in range(1000):
    optimizer.step()
"""
    assert told(text, "FL117") == []


def test_layers_of_a_list_that_go_on_to_a_sequential_are_registered() -> None:
    text = """\
from torch import nn

class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        convs = [nn.Conv2d(a, b, 3) for a, b in sizes]
        sequence = []
        for conv in convs:
            sequence.append(conv)
            sequence.append(nn.ReLU())
        self.body = nn.Sequential(*sequence)
        self.convs = convs

    def forward(self, x):
        return [conv(x) for conv in self.convs]
"""
    assert told(text, "FL801") == []


def test_an_object_that_runs_the_backward_itself_is_not_seen_into() -> None:
    text = """\
import torch

def train(model, optim, loader):
    for x in loader:
        optim.zero_grad()
        loss = model(x).mean()
        optim.backward(loss)
        optim.step()
"""
    assert told(text, "FL117") == []


def test_an_extractor_that_nobody_trains_may_be_frozen_inside() -> None:
    text = """\
import torch
from library import Backbone

class Extractor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Backbone()

    def forward(self, x):
        return self.model(x)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
extractor = Extractor()
features = []
for x in loader:
    features.append(extractor(x))
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""
    assert "error" not in told(text, "FL401")
