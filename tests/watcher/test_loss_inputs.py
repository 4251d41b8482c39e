"""What a live loss is given: the operation that made its input says whether it is what the loss expects."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.watcher.loss_inputs import mismatch

torch.manual_seed(0)
LOGITS = torch.nn.Linear(4, 3)(torch.randn(6, 4))


def given(loss: str, value: Tensor) -> str | None:
    found = mismatch(loss, value.grad_fn)
    return found[0] if found is not None else None


@pytest.mark.parametrize(
    ("loss", "value", "code"),
    [
        ("cross_entropy", F.softmax(LOGITS, 1), "FL606"),
        ("cross_entropy", F.softmax(LOGITS, 1).view(-1, 3)[:4], "FL606"),
        ("cross_entropy", LOGITS.sigmoid().double(), "FL606"),
        ("cross_entropy", LOGITS.relu(), "FL612"),
        ("binary_cross_entropy_with_logits", LOGITS[:, :1].sigmoid().squeeze(1), "FL606"),
        ("nll_loss", F.softmax(LOGITS, 1), "FL612"),
        ("nll_loss", LOGITS, "FL612"),
        ("kl_div", F.softmax(LOGITS, 1), "FL612"),
        ("kl_div", LOGITS, "FL612"),
        ("binary_cross_entropy", F.log_softmax(LOGITS[:, :1], 1), "FL612"),
    ],
)
def test_what_the_loss_does_not_expect(loss: str, value: Tensor, code: str) -> None:
    assert given(loss, value) == code


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        ("cross_entropy", LOGITS),
        ("cross_entropy", F.log_softmax(LOGITS, 1)),  # twice is as once
        ("cross_entropy", LOGITS.tanh()),
        ("cross_entropy", 10 * F.softmax(LOGITS, 1)),  # scaled on purpose
        ("nll_loss", F.log_softmax(LOGITS, 1)),
        ("nll_loss", F.softmax(LOGITS, 1).log()),
        ("kl_div", F.log_softmax(LOGITS, 1)),
        (
            "kl_div",
            F.softmax(LOGITS, 1).expand(2, 6, 3),
        ),  # each against several: minus their dot product is meant
        ("binary_cross_entropy", LOGITS.sigmoid()),
        ("mse_loss", F.softmax(LOGITS, 1)),
    ],
)
def test_what_it_may_be_given(loss: str, value: Tensor) -> None:
    assert given(loss, value) is None
