"""Which samples a script reads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, RandomSampler, TensorDataset  # noqa: E402

from fallline.errors import UsageError  # noqa: E402
from fallline.instruments.samples import measure_samples  # noqa: E402


def train(epochs: int, **options: object) -> None:
    data = TensorDataset(torch.randn(20, 4))
    if options.pop("replacement", False):
        options["sampler"] = RandomSampler(data, replacement=True)
    loader = DataLoader(data, batch_size=5, **options)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_loader_is_right(workers: int) -> None:
    torch.manual_seed(0)
    found = measure_samples(lambda: train(2, shuffle=True, num_workers=workers))
    assert (found.read, found.distinct, found.twice, found.epochs) == (40, 20, 0, 2)
    assert found.same_order is False and found.dataset == 20
    assert "at most once" in found.text()


def test_the_same_order_in_every_epoch() -> None:
    found = measure_samples(lambda: train(2))
    assert found.same_order is True and "same order" in found.text()
    assert measure_samples(lambda: train(1)).same_order is None


def test_samples_that_are_drawn_twice() -> None:
    torch.manual_seed(0)
    found = measure_samples(lambda: train(1, replacement=True))
    assert found.twice > 0 and found.distinct < 20 and "more than once" in found.text()


def test_it_ends_after_so_many_updates() -> None:
    found = measure_samples(lambda: train(3, shuffle=True), updates=2)
    assert found.epochs == 1 and found.read <= 15


def test_without_a_loader_there_is_nothing_to_say() -> None:
    with pytest.raises(UsageError):
        measure_samples(lambda: None)
