"""Models that are called for their answer alone, known by what is done with them and not by where they come from."""

from __future__ import annotations

import pytest

from fallline.finding import Severity
from fallline.verdict.reading import read_text

ENCODER = """\
import numpy as np
import torch


class Embedder:
    def __init__(self, name, config):
        self.model = REGISTRY[name](config)

    def encode_sentences(self, batches):
        found = []
        for batch in batches:
            vectors = self.model(batch)
            found.append(vectors.detach().cpu().numpy())
        return np.concatenate(found)
"""
SELF = """\
import torch
from torch import nn


class Tagger(nn.Module):
    def freeze(self, layer):
        layer.requires_grad = False

    def slide(self, chunks):
        return [self(torch.tensor(chunk)).detach().cpu().numpy() for chunk in chunks]
"""
BY_USE = """\
import torch


def synthesize(checkpoint, mels):
    tacotron = build(checkpoint)
    print(sum(p.numel() for p in tacotron.parameters()))
    return [tacotron(mel).cpu().numpy() for mel in mels]
"""
RESTS = """\
import torch


class Restorer:
    def test(self):
        self.netG.eval()
        self.fake = self.netG(self.low)
        self.netG.train()
"""
STEPWISE = """\
import torch


def synthesize(model, text):
    mels = model.incremental_forward(text, fast=True)
    return mels.cpu().numpy()
"""
SIBLINGS = """\
import torch
from torch import nn


class Framework(nn.Module):
    def train_model(self, loader):
        self.model.train()
        for x, y in loader:
            self.optimizer.zero_grad()
            self.criterion(self.model(x), y).backward()
            self.optimizer.step()

    def eval_model(self, loader):
        self.model.eval()
        with torch.no_grad():
            return [self.model(x) for x in loader]

    def infer(self, item):
        with torch.no_grad():
            return self.model(item).argmax(-1)
"""


def notes(source: str, code: str) -> list[int]:
    found = [f for f in read_text(source, "train.py") if f.code == code]
    assert all(f.severity is Severity.INFO for f in found)
    return [f.at.line for f in found]


@pytest.mark.parametrize(
    ("source", "line"), [(ENCODER, 12), (SELF, 10), (BY_USE, 7), (RESTS, 7), (STEPWISE, 5)]
)
def test_an_answer_that_leaves_the_graph_is_noted(source: str, line: int) -> None:
    assert notes(source, "FL402") == [line]


@pytest.mark.parametrize(
    "source",
    [
        ENCODER.replace("    def encode", "    @torch.no_grad()\n    def encode"),
        ENCODER.replace("found = []", "found = [torch.no_grad().__enter__()]"),
        # a caller holds it
        ENCODER
        + "\n\ndef main(e, data):\n    with torch.no_grad():\n        e.encode_sentences(data)\n",
        # a force is the gradient of what the model says
        ENCODER.replace("vectors =", "batch.requires_grad_()\n            vectors ="),
        # one function for both
        ENCODER.replace("batches):", "batches, train=False):"),
        # frozen where it is made
        ENCODER.replace("(config)\n", "(config).requires_grad_(False)\n"),
        # a framework calls it
        ENCODER.replace("class Embedder:", "class Embedder(Task):"),
    ],
)
def test_what_turns_recording_off_or_wants_it_is_left_alone(source: str) -> None:
    assert notes(source, "FL402") == []


def test_a_method_that_forgets_the_mode_its_siblings_set_is_noted() -> None:
    assert notes(SIBLINGS, "FL809") == [20]


@pytest.mark.parametrize(
    "source",
    [
        SIBLINGS.replace(
            "def infer(self, item):\n", "def infer(self, item):\n        self.eval()\n"
        ),
        # whoever calls `eval` of this class chooses
        SIBLINGS.replace("eval_model(self, loader)", "eval(self, loader)"),
        SIBLINGS.replace("        self.model.train()\n", ""),
    ],
)
def test_a_mode_that_somebody_sets_is_left_alone(source: str) -> None:
    assert notes(source, "FL809") == []


TRAINER = """\
import torch
from torch import nn, optim


class Trainer(nn.Module):
    def __init__(self, model, loader, held_out):
        super().__init__()
        self.model = model
        self.parallel = nn.DataParallel(self.model)
        self.loader, self.held_out = loader, held_out
        self.optimizer = optim.SGD(self.parameters(), lr=0.1)

    def train_model(self):
        for epoch in range(10):
            for x, y in self.loader:
                nn.functional.cross_entropy(self.parallel(x), y).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.evaluate()

    def evaluate(self):
        self.eval()
        with torch.no_grad():
            for x, y in self.held_out:
                self.parallel(x)
"""


def test_the_mode_of_a_module_reaches_what_it_holds_and_its_optimizer_steps_it() -> None:
    assert [f.at.line for f in read_text(TRAINER) if f.code == "FL804"] == [22]
    back = TRAINER.replace("range(10):\n", "range(10):\n            self.train()\n")
    assert [f.at.line for f in read_text(back) if f.code == "FL804"] == []


UNKNOWN_LOSS = """\
import torch


class Runner:
    def training_epoch(self, loader):
        total = 0.0
        for batch in loader:
            loss = self.training_step(batch)
            total += loss
            loss.backward()
            if self.is_boundary(batch):
                self.report(total)
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                total = 0.0
"""


def test_what_has_a_backward_has_a_graph_wherever_it_comes_from() -> None:
    def found(source: str) -> list[int]:
        return [f.at.line for f in read_text(source) if f.code == "FL401"]

    assert found(UNKNOWN_LOSS) == [9]
    assert found(UNKNOWN_LOSS.replace("total += loss\n", "total += loss.item()\n")) == []
    assert found(UNKNOWN_LOSS.replace("loss.backward()", "total.backward()")) == []
    assert (
        found(
            UNKNOWN_LOSS.replace(
                "            total += loss", "            total = 0\n            total += loss"
            )
        )
        == []
    )


SAMPLES = """\
import torch


class PriorTrainer:
    def __init__(self, prior, optimizer):
        self.prior = prior
        self.optimizer = optimizer

    def step(self, batch):
        self.prior.train()
        self.optimizer.zero_grad()
        self.prior(batch).backward()
        self.optimizer.step()

    @torch.no_grad()
    def sample(self, text):
        return self.prior.sample(text)

    def validate(self, loader):
        total = 0.0
        with torch.no_grad():
            for batch in loader:
                total += self.prior(batch).item()
        return total
"""


def test_a_class_that_trains_and_never_rests_answers_in_train_mode() -> None:
    assert notes(SAMPLES, "FL809") == [17, 23]


@pytest.mark.parametrize(
    "source",
    [
        SAMPLES.replace("        total = 0.0\n", "        self.prior.eval()\n"),
        # a base that is not seen, or that sees to it
        SAMPLES.replace("class PriorTrainer:", "class PriorTrainer(Trainer):"),
        "class Trainer:\n    def rest(self):\n        self.prior.eval()\n\n\n"
        + SAMPLES.replace("class PriorTrainer:", "class PriorTrainer(Trainer):"),
        # a decorator that may
        SAMPLES.replace("@torch.no_grad()", "@torch.no_grad()\n    @resting").replace(
            "def validate", "def training_loss"
        ),
        # nobody speaks of modes here
        SAMPLES.replace("        self.prior.train()\n", ""),
        # for training: what it samples is what it learns from
        SAMPLES.replace("def sample", "def sample_negatives").replace(
            "def validate", "def rollout"
        ),
        # both phases in one function
        SAMPLES.replace("loader):", "loader, training):").replace("text):", "text, mode):"),
    ],
)
def test_a_class_that_leaves_the_mode_to_others_is_left_alone(source: str) -> None:
    assert notes(source, "FL809") == []


SIBLING_CALLED = (
    SIBLINGS
    + """\

    def demo(self, items):
        # EVAL
        return [self.infer(i) for i in items]
"""
)


def test_a_caller_that_sets_no_mode_excuses_nothing() -> None:
    assert notes(SIBLING_CALLED, "FL809") == [20]
    assert notes(SIBLING_CALLED.replace("# EVAL", "self.model.eval()"), "FL809") == []
    assert notes(SIBLINGS.replace("def infer", "def generate"), "FL809") == [20]
