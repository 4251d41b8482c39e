"""Kinds of code that hid mistakes of evaluation, modes and checkpoints in public histories: each wrong program, and its right twin."""

from __future__ import annotations

import textwrap

import pytest

from fallline.finding import Finding, Severity
from fallline.verdict.reading import read_text

NET = """\
import torch
from torch import nn
import torchvision.models as models
import utils


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)

    def encode(self, x):
        return self.drop(self.enc(x))

    def compute_loss(self, x):
        return self.encode(x).pow(2).mean()

    def forward(self, x):
        return self.encode(x)


"""
EPOCHS = """\
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(3):
    model.train()
    for x in loader:
        optimizer.zero_grad()
        loss = model.compute_loss(x)
        loss.backward()
        optimizer.step()
    evaluate(model, loader)
"""
ONCE = EPOCHS.replace("    model.train()\n", "").replace("for epoch", "model.train()\nfor epoch")


def found(source: str) -> list[Finding]:
    return read_text(source)


def says(source: str, code: str) -> list[Severity]:
    return [f.severity for f in found(textwrap.dedent(source)) if f.code == code]


BY_A_METHOD = """\
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x in loader:
            print(model.encode(x).mean())


"""


def test_a_method_of_the_model_is_a_pass_through_it() -> None:
    recorded = BY_A_METHOD.replace("with torch.no_grad()", "if True")
    assert says(NET + recorded + EPOCHS, "FL402") == [Severity.WARNING]
    assert says(NET + BY_A_METHOD + EPOCHS, "FL402") == []
    assert says(NET + BY_A_METHOD + ONCE, "FL804") == [Severity.ERROR]
    assert says(NET + BY_A_METHOD + EPOCHS, "FL804") == []


def test_an_evaluation_by_a_method_in_train_mode() -> None:
    training = BY_A_METHOD.replace("    model.eval()\n", "")
    assert says(NET + training + EPOCHS, "FL809") == [Severity.WARNING]
    assert says(NET + BY_A_METHOD + EPOCHS, "FL809") == []


PRESUMED = """\
import torch


def fit(model, loader, val_loader, optimizer, epochs):
    model.train()
    for epoch in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model.compute_loss(batch)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in val_loader:
                print(model.compute_loss(batch))
        # BACK
"""


def test_also_where_the_model_is_only_presumed() -> None:
    assert says(PRESUMED, "FL804") == [Severity.WARNING]
    assert says(PRESUMED.replace("# BACK", "model.train()"), "FL804") == []


VALIDATED = """\
def train(loader, model, criterion, optimizer):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(val_loader, model, criterion):
    # EVAL
    return sum(one(x, y) for x, y in val_loader)


def main(args, train_loader, val_loader, teacher):
    teacher.eval()
    model = models.__dict__[args.arch]()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        train(train_loader, model, criterion, optimizer)
        validate(val_loader, model, criterion)
""".replace(
    "    return sum(one(x, y) for x, y in val_loader)\n",
    "    for x, y in val_loader:\n        print(criterion(model(x), y).item())\n",
)


def test_eval_of_another_model_is_not_eval_of_this_one() -> None:
    head = NET.partition("class Net")[0]
    assert says(head + VALIDATED, "FL809") == [Severity.WARNING]
    assert says(head + VALIDATED.replace("# EVAL", "model.eval()"), "FL809") == []


PREDICTED = """\
def predict(model, dataset):
    with torch.no_grad():
        return [model(x) for x in dataset]


def main(path, dataset):
    model = Net()
    utils.load_checkpoint(path, model)
    # EVAL
    return predict(model, dataset)
"""
EXTRACTED = """\
class Features:
    def __init__(self):
        self.net = models.resnet18(pretrained=True)
        # EVAL

    def __call__(self, x):
        return self.net(x)
"""


@pytest.mark.parametrize(
    ("program", "right"), [(PREDICTED, "model.eval()"), (EXTRACTED, "self.net.eval()")]
)
def test_weights_that_a_helper_or_a_library_loads(program: str, right: str) -> None:
    assert says(NET + program, "FL809") == [Severity.WARNING]
    assert says(NET + program.replace("# EVAL", right), "FL809") == []


IN_A_CLASS = """\
import torch


class Model:
    def __init__(self, net, optimizer, criterion):
        self.net = net
        self.optimizer = optimizer
        self.criterion = criterion
        self.net.train()

    def optimize(self, x, y):
        self.optimizer.zero_grad()
        self.criterion(self.net(x), y).backward()
        self.optimizer.step()

    def test(self, x):
        self.net.eval()
        with torch.no_grad():
            self.output = self.net(x)
        # BACK
"""


def test_a_method_that_leaves_eval_mode_on() -> None:
    assert says(IN_A_CLASS, "FL804") == [Severity.INFO]
    assert says(IN_A_CLASS.replace("# BACK", "self.net.train()"), "FL804") == []


ENGINE = """\
import torch


class Engine:
    def __init__(self, model, optimizer, scheduler):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler

    def save(self, epoch):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": epoch,
        }
        torch.save(state, "last.pt")

    def resume(self):
        state = torch.load("last.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]
"""


def test_state_that_a_class_is_given_and_keeps() -> None:
    saved = ENGINE.replace(
        '"epoch": epoch', '"scheduler": self.scheduler.state_dict(), "epoch": epoch'
    )
    optional = ENGINE.replace("scheduler):", "scheduler=None):")
    assert says(ENGINE, "FL701") == [Severity.WARNING]
    assert says(optional, "FL701") == [Severity.INFO]
    assert Severity.WARNING not in says(saved, "FL701")


def test_a_state_dict_that_is_not_called() -> None:
    wrong = ENGINE.replace("self.optimizer.state_dict()", "self.optimizer.state_dict")
    assert Severity.WARNING in says(wrong.replace(", scheduler", ""), "FL701")


TWO = """\
import torch


def train(loader, g, d, g_optim, d_optim, resume):
    state = torch.load(resume)
    d_optim.load_state_dict(state["d_optim"])
    for i, x in enumerate(loader):
        d_optim.zero_grad()
        d(g(x).detach()).mean().backward()
        d_optim.step()
        g_optim.zero_grad()
        d(g(x)).mean().backward()
        g_optim.step()
        state = {"g": g.state_dict(), "d": d.state_dict(), "d_optim": d_optim.state_dict(), "step": i}
        torch.save(state, f"{i}.pt")
"""


def test_one_of_two_optimizers_is_not_saved() -> None:
    both = TWO.replace('"step": i', '"g_optim": g_optim.state_dict(), "step": i')
    assert says(TWO, "FL701") == [Severity.WARNING]
    assert Severity.WARNING not in says(both, "FL701")


def test_an_optimizer_that_each_epoch_makes_anew_has_no_state_to_save() -> None:
    source = """\
    import torch


    def main(model, loader, epochs, resume):
        model.load_state_dict(torch.load(resume)["model"])
        start = torch.load(resume)["epoch"]
        for epoch in range(start, epochs):
            optimizer = torch.optim.Adam(model.parameters())
            for x in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            torch.save({"model": model.state_dict(), "epoch": epoch}, f"{epoch}.pt")
    """
    assert Severity.WARNING not in says(source, "FL701")


def test_losses_of_one_epoch_are_kept_until_it_ends() -> None:
    source = NET + BY_A_METHOD + EPOCHS
    kept = source.replace(
        "    model.train()\n    for", "    model.train()\n    losses = []\n    for"
    )
    kept = kept.replace("optimizer.step()\n", "optimizer.step()\n        losses.append(loss)\n")
    messages = [f.message for f in found(kept) if f.code == "FL401"]
    assert len(messages) == 1
    assert "until the end of the epoch" in messages[0]
