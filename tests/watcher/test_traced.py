"""What a compiler traces or functorch transforms is not published, and a switch that changes compiles nothing again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fallline.taps.losses import LOSS
from fallline.taps.modes import CHECKPOINT
from fallline.taps.modules import FORWARD
from fallline.taps.tap import Subscription, switch


class _Pulse:
    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Nothing."""

    def after(self, optimizer: Any) -> None:
        """Nothing."""


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    published: list[Any] = []
    taps = Subscription(rebind=True)
    for topic in (FORWARD, LOSS, CHECKPOINT):
        taps.before(topic, published.append)
    taps.start()
    yield published
    taps.stop()


def _step(model: nn.Module) -> torch.Tensor:
    rows = torch.zeros(4, 8)
    out = checkpoint(model, rows, use_reentrant=False)
    return functional.cross_entropy(out, torch.tensor([0, 1, 2, -100]))


def test_what_has_no_values_is_not_published(seen: list[Any]) -> None:
    with FakeTensorMode():
        _step(nn.Linear(8, 3))
    assert seen == []
    torch.vmap(lambda row: functional.mse_loss(row, row))(torch.zeros(4, 3))
    assert seen == []
    _step(nn.Linear(8, 3))
    assert [type(call).__name__ for call in seen] == ["CheckpointCall", "ForwardCall", "LossCall"]


def test_a_loss_function_stays_the_same_while_anyone_listens(seen: list[Any]) -> None:
    kept, later = functional.mse_loss, Subscription()
    later.before(LOSS, seen.append)
    later.start()
    later.stop()
    assert functional.mse_loss is kept


def test_a_rest_compiles_nothing_again(seen: list[Any]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 3)

        def forward(self, rows: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.inner(rows), classes)

    torch._dynamo.reset()
    model = torch.compile(Net(), backend="aot_eager")
    given = torch.zeros(4, 8), torch.zeros(4, dtype=torch.long)
    with torch._dynamo.config.patch(error_on_recompile=True):
        model(*given)
        try:
            switch.rest(_Pulse())
            model(*given)
        finally:
            switch.rest(None)
        model(*given)
    assert len(seen) == 2, "the outermost call, while the switch is not at rest"
