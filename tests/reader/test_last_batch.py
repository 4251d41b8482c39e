"""The last batch of the data, however its test is written: windows of four, data of any length."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

ACCUM = 4


class Pairs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(4), torch.randn(1)


class Batches:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        for _ in range(self.n):
            yield torch.randn(4, 4), torch.randn(4, 1)


model = nn.Linear(4, 1)
"""
TRAINER = """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader, self.total = model, loader, len(loader)
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch(self):
        self.opt.zero_grad()
        for i, (x, y) in enumerate(self.loader):
            loss = nn.functional.mse_loss(self.model(x), y) / ACCUM
            loss.backward()
            last_batch = i == len(self.loader) - 1
            need_update = last_batch or (i + 1) % ACCUM == 0
            if {test}:
                self.opt.step()
                self.opt.zero_grad()


pairs = Pairs(100)
trainer = Trainer(model, {data})
for epoch in range(2):
    trainer.epoch()
"""
DATA = (
    "DataLoader(TensorDataset(torch.randn(250, 4), torch.randn(250, 1)), batch_size=16)",
    "DataLoader(TensorDataset(torch.randn(99, 4), torch.randn(99, 1)), batch_size=2)",
    "DataLoader(Pairs(100), batch_size=4)",
    "Pairs(10)",
    "Batches(10)",
)
TESTS = (
    "(i + 1) % ACCUM == 0 or i + 1 == len(self.loader)",
    "(i + 1) % ACCUM == 0 or i + 1 == self.total",
    "(i + 1) % ACCUM == 0 or i >= len(self.loader) - 1",
    "(i + 1) % ACCUM == 0 or (i + 1) % len(self.loader) == 0",
    "need_update",
)


def _warned(data: str, test: str) -> set[str]:
    found = read_text(SETUP + TRAINER.format(data=data, test=test), "train.py")
    return {f.code for f in found if f.severity != "info"}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("test", TESTS)
def test_a_step_on_the_last_batch_leaves_nothing_over(data: str, test: str) -> None:
    assert _warned(data, test) == set()


def test_a_length_computed_from_the_data_set_is_that_of_the_data() -> None:
    test = "(i + 1) % ACCUM == 0 or i + 1 == len(pairs) // 4"
    assert _warned("DataLoader(pairs, batch_size=4)", test) == set()


@pytest.mark.parametrize("data", [d for d in DATA if "250" not in d])  # 16 batches are four windows
@pytest.mark.parametrize(
    "test", ("(i + 1) % ACCUM == 0", "i % ACCUM == 3 and i < len(self.loader)")
)
def test_without_it_the_rest_is_dropped(data: str, test: str) -> None:
    assert _warned(data, test) == {"FL107"}
