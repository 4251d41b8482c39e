"""FL601: the logarithm of something that can be zero or negative."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import nonfinite, slope, value, words

LOGITS = [float(-z) for z in range(0, 121, 2)]


@experiment(
    "FL601",
    claim="A probability that reaches 0 makes log infinite and one step writes NaN into every weight; neither an "
    "epsilon below zero nor torch.where around the log helps.",
    taught="log(pred + 1e-8) is stable.",
)
def log_unguarded() -> Measured:
    wrong: dict[str, float] = {
        "loss at logit -89": value(lambda z: -torch.sigmoid(z).log(), -89.0),
        "loss, softmax logits 104 apart": value(
            lambda z: -torch.softmax(_pair(z), 0)[1].log(), 104.0
        ),
        "log at -0.1": value(lambda x: torch.log(x + 1e-8), -0.1),
        "slope at 0 under a condition": slope(lambda x: torch.where(x > 0, torch.log(x), 0.0), 0.0),
        "NaN weights after one step": _nan_weights(lambda z: -torch.sigmoid(z).log()),
    }
    right: dict[str, float] = {
        "loss at logit -89": value(lambda z: -F.logsigmoid(z), -89.0),
        "loss, softmax logits 104 apart": value(lambda z: -F.log_softmax(_pair(z), 0)[1], 104.0),
        "log at -0.1": value(lambda x: torch.log(x.clamp_min(1e-6)), -0.1),
        "slope at 0 under a condition": slope(lambda x: torch.log(torch.where(x > 0, x, 1.0)), 0.0),
        "NaN weights after one step": _nan_weights(lambda z: -F.logsigmoid(z)),
    }
    return Measured(
        sides={
            "wrong": {name: words(number) for name, number in wrong.items()},
            "right": {name: words(number) for name, number in right.items()},
        },
        conclusion=f"-log(sigmoid(-89)) is {wrong['loss at logit -89']}, log(-0.1 + 1e-8) is {wrong['log at -0.1']}, and one step "
        f"turns {wrong['NaN weights after one step']:.0f} of 5 weights into NaN; with logsigmoid {right['NaN weights after one step']:.0f}",
        holds={
            "sigmoid(-89) is exactly 0, and the loss infinite": wrong["loss at logit -89"]
            == math.inf,
            "so is a softmax with logits 104 apart": wrong["loss, softmax logits 104 apart"]
            == math.inf,
            "an epsilon does not help below zero": math.isnan(wrong["log at -0.1"]),
            "where() around the log keeps a NaN slope": math.isnan(
                wrong["slope at 0 under a condition"]
            ),
            "one step makes every weight NaN": wrong["NaN weights after one step"] == 5,
            "the stable forms stay finite": all(map(math.isfinite, right.values())),
            "the stable forms give the exact loss": abs(right["loss at logit -89"] - 89) < 1e-3
            and abs(right["loss, softmax logits 104 apart"] - 104) < 1e-3,
        },
        curves={
            "wrong": [value(lambda z: -torch.sigmoid(z).log(), z) for z in LOGITS],
            "right": [value(lambda z: -F.logsigmoid(z), z) for z in LOGITS],
        },
        axes=("logit of the right answer", "loss"),
        positions=LOGITS,
    )


def _pair(gap: Tensor) -> Tensor:
    """Two logits, the second one lower by `gap`."""
    return torch.stack([torch.zeros(()), -gap])


def _nan_weights(loss: Callable[[Tensor], Tensor]) -> int:
    """One update on 16 samples, one of which is far out."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 4)
    x[0] = -1000 * model.weight.detach().sign()
    loss(model(x)).mean().backward()
    optimizer.step()
    return nonfinite(model.parameters())
