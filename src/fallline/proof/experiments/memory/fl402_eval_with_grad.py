"""FL402: a model in eval mode, called while autograd records."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import pairwise

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.memory._live import SavedForBackward, graph_nodes

LAYERS, WIDTH, BATCH = 12, 64, 32


@experiment(
    "FL402",
    claim="eval() does not stop autograd: every activation of the evaluation is kept; under no_grad none is.",
)
def eval_with_grad() -> Measured:
    wrong, wrong_nodes = _evaluate(torch.enable_grad())
    right, right_nodes = _evaluate(torch.no_grad())
    activation = BATCH * WIDTH * 4
    return Measured(
        sides={
            "wrong": {"bytes saved for backward": wrong[-1], "graph nodes": wrong_nodes},
            "right": {"bytes saved for backward": right[-1], "graph nodes": right_nodes},
        },
        conclusion=f"one evaluation batch through {LAYERS} layers keeps {wrong[-1] // 1024} KiB "
        f"({wrong[-1] / activation:.0f} activations) and {wrong_nodes} graph nodes; under no_grad {right[-1]} and {right_nodes}",
        holds={
            "in eval mode the kept bytes grow with every layer": all(
                b > a for a, b in pairwise(wrong)
            ),
            "at least one activation is kept for each layer": wrong[-1] >= LAYERS * activation,
            "under no_grad nothing is kept": right[-1] == 0 and right_nodes == 0,
        },
        curves={"wrong": wrong, "right": right},
        axes=("layer", "bytes kept"),
    )


def _evaluate(mode: AbstractContextManager[object]) -> tuple[list[int], int]:
    """Bytes kept after each layer of one evaluation batch, and the graph nodes of its output."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout()) for _ in range(LAYERS))
    ).eval()
    x = torch.randn(BATCH, WIDTH)
    kept = []
    with mode, SavedForBackward(model) as saved:
        for layer in model:
            x = layer(x)
            kept.append(saved.now)
        return kept, graph_nodes([x])
