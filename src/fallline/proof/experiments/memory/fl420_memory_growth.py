"""FL420: something kept from every update, with its graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.memory._live import graph_nodes

UPDATES = 60


@experiment(
    "FL420",
    claim="A running average made of losses keeps the graph of every update; made of numbers it keeps nothing, and "
    "a list of numbers grows by bytes.",
)
def memory_growth() -> Measured:
    wrong, history = _train(lambda loss: loss)
    right, _ = _train(lambda loss: loss.item())
    per_update = (wrong[-1] - wrong[0]) / (UPDATES - 1)
    number_bytes = sys.getsizeof(history) + sum(map(sys.getsizeof, history))
    return Measured(
        sides={
            "wrong": {"graph nodes alive after 60 updates": wrong[-1]},
            "right": {"graph nodes alive after 60 updates": right[-1]},
            "a list of all losses as numbers": {"bytes after 60 updates": number_bytes},
        },
        conclusion=f"the average of losses holds {per_update:.0f} more graph nodes after every update "
        f"({wrong[-1]} after {UPDATES}), the average of numbers {right[-1]}; a list of {UPDATES} numbers takes "
        f"{number_bytes / 1024:.1f} KiB",
        holds={
            "the graph never shrinks": all(b > a for a, b in pairwise(wrong)),
            "numbers hold no graph": max(right) == 0,
            "a list of numbers stays below 100 bytes an update": number_bytes < 100 * UPDATES,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "graph nodes alive"),
    )


def _train(value: Callable[[Tensor], Tensor | float]) -> tuple[list[int], list[float]]:
    """Graph nodes alive after each update of a loop with a running average of its losses, and the losses."""
    model, windows = regression(updates=UPDATES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average: Tensor | float = 0.0
    nodes, history = [], []
    for ((x, y),) in windows:
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average = 0.9 * average + 0.1 * value(loss)
        nodes.append(graph_nodes([average] if isinstance(average, Tensor) else []))
        history.append(loss.item())
    return nodes, history
