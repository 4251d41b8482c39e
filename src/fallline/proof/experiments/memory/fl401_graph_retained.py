"""FL401: a history of losses that still carry their graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.memory._live import SavedForBackward, graph_nodes

ITERATIONS = 40


@experiment(
    "FL401",
    claim="A kept loss keeps its whole graph, one more with every iteration; where no backward has "
    "run, the saved activations too.",
)
def graph_retained() -> Measured:
    wrong, right = _appended(_as_it_is), _appended(Tensor.detach)
    wrong_bytes, right_bytes = _summed(_as_it_is), _summed(Tensor.detach)
    return Measured(
        sides={
            "wrong": {
                "graph nodes kept after 40 updates, append(loss)": wrong[-1],
                "bytes kept by total += loss, 40 batches without backward": wrong_bytes,
            },
            "right": {
                "graph nodes kept after 40 updates, append(loss)": right[-1],
                "bytes kept by total += loss, 40 batches without backward": right_bytes,
            },
        },
        conclusion=f"{ITERATIONS} appended losses keep {wrong[-1]} graph nodes alive, detached ones {right[-1]}; "
        f"summed in an evaluation they hold the activations of {wrong_bytes / right_bytes:.0f} batches instead of one",
        holds={
            "every update adds as many nodes as the one before": _steps(wrong)
            == {wrong[1] - wrong[0]}
            and wrong[1] > wrong[0],
            "a detached history holds no graph": right[-1] == 0,
            "a sum of losses holds every batch's activations": wrong_bytes
            == ITERATIONS * right_bytes,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "graph nodes alive"),
    )


def _appended(keep: Callable[[Tensor], Tensor]) -> list[int]:
    """Graph nodes alive after each update of a training loop that appends its losses."""
    model, windows = regression(updates=ITERATIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history, nodes = [], []
    for ((x, y),) in windows:
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(keep(loss))
        nodes.append(graph_nodes(history))
    return nodes


def _summed(keep: Callable[[Tensor], Tensor]) -> int:
    """Bytes held at the end of an evaluation that sums its losses."""
    model, windows = regression(updates=ITERATIONS)
    total = torch.zeros(())
    with SavedForBackward(model) as saved:
        for ((x, y),) in windows:
            loss = mse_loss(model(x), y)
            total = total + keep(loss)
        return saved.now


def _as_it_is(loss: Tensor) -> Tensor:
    return loss


def _steps(counts: list[int]) -> set[int]:
    return {b - a for a, b in pairwise(counts)}
