"""FL111: four micro-batches with different numbers of real tokens, against one big batch of all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import gradient, off

PAD = -100
LENGTHS = {"uneven": (256, 8, 8, 8), "similar": (32, 58, 45, 64), "equal": (50, 50, 50, 50)}


@experiment(
    "FL111",
    claim="The mean of token means is not the mean over the big batch unless the counts are equal; the sum over all tokens of the window is exact.",
    taught="Dividing by the number of micro-batches is always right, whatever the padding.",
)
def mean_of_means() -> Measured:
    means = {
        name: off(_accumulated(tokens, "mean"), _big(tokens)) for name, tokens in LENGTHS.items()
    }
    sums = {
        name: off(_accumulated(tokens, "sum"), _big(tokens)) for name, tokens in LENGTHS.items()
    }
    return Measured(
        sides={
            "wrong": {f"{name} counts, off by, percent": 100 * v for name, v in means.items()},
            "right": {f"{name} counts, off by, percent": 100 * v for name, v in sums.items()},
        },
        conclusion=f"for {_list('similar')} real tokens the mean of means is {means['similar']:.0%} off, for {_list('uneven')} it is {means['uneven']:.0%} off; "
        f"the sum over all tokens is {max(sums.values()):.0%} off",
        holds={
            "equal counts are exact": means["equal"] < 1e-12,
            "similar counts are off": means["similar"] > 0.03,
            "uneven counts are far off": means["uneven"] > 0.5,
            "the sum over all tokens is exact": max(sums.values()) < 1e-12,
        },
    )


def _list(name: str) -> str:
    *first, last = LENGTHS[name]
    return f"{', '.join(map(str, first))} and {last}"


def _data(tokens: tuple[int, ...]) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Micro-batches of one length, padded after their real tokens."""
    torch.manual_seed(0)
    model = nn.Linear(16, 10, dtype=torch.float64)
    longest = max(tokens)
    micro_batches = []
    for real in tokens:
        x, y = torch.randn(longest, 16, dtype=torch.float64), torch.randint(10, (longest,))
        y[real:] = PAD
        micro_batches.append((x, y))
    return model, micro_batches


def _accumulated(tokens: tuple[int, ...], reduction: str) -> Tensor:
    model, micro_batches = _data(tokens)
    divisor = len(tokens) if reduction == "mean" else sum(tokens)
    for x, y in micro_batches:
        loss = cross_entropy(model(x), y, ignore_index=PAD, reduction=reduction)
        (loss / divisor).backward()
    return gradient(model)


def _big(tokens: tuple[int, ...]) -> Tensor:
    model, micro_batches = _data(tokens)
    x, y = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    cross_entropy(model(x), y, ignore_index=PAD).backward()
    return gradient(model)
