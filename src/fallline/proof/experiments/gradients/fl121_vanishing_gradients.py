"""FL121: a 20-layer network with sigmoids, and one with residual connections: gradients by depth, and what is learned."""

from __future__ import annotations

from math import log10

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat, gradient

LAYERS = 20
WIDTH = 16
UPDATES = 60


@experiment(
    "FL121",
    claim="Through saturating layers the early layers' gradients are more than 1000 times smaller than the late ones' and the loss does not fall; residual connections prevent both.",
    taught="In a deep network the gradients of the last layers vanish.",
)
def vanishing_gradients() -> Measured:
    wrong, wrong_norms, wrong_moved = _train(residual=False)
    right, right_norms, right_moved = _train(residual=True)
    # The residual network is also centred: what does that alone do?
    _, centred_norms, _ = _train(residual=False, centred=True)
    centred = centred_norms[-1] / centred_norms[0]
    vanished, kept = wrong_norms[-1] / wrong_norms[0], right_norms[-1] / right_norms[0]
    return Measured(
        sides={
            "wrong": {
                "last layer's gradient over the first's": vanished,
                "first layer moved": wrong_moved,
                "loss at the start": wrong[0],
                "loss after 60 updates": wrong[-1],
            },
            "right": {
                "last layer's gradient over the first's": kept,
                "first layer moved": right_moved,
                "loss at the start": right[0],
                "loss after 60 updates": right[-1],
            },
            "centred, without residual connections": {
                "last layer's gradient over the first's": centred,
            },
        },
        conclusion=f"through {LAYERS} sigmoid layers the first layer's gradient is 1e{round(-log10(vanished))} of the last's and the loss goes from {wrong[0]:.1f} to {wrong[-1]:.1f}; "
        f"with residual connections the ratio is {1 / kept:.1f} and the loss falls to {right[-1]:.2f}",
        holds={
            "early gradients are at least 1000 times smaller": vanished > 1e3,
            "the first layer does not learn": wrong_moved < 1e-6,
            "the loss does not fall": wrong[-1] > 0.5 * wrong[0],
            "nor does centring alone help": centred > 1e3,
            "with residual connections the gradients reach it": kept < 100,
            "and the loss falls": right[-1] < 0.5 * right[0],
        },
        curves={"wrong": wrong_norms, "right": right_norms},
        axes=("layer", "gradient norm"),
        positions=range(1, LAYERS + 1),
    )


def _train(
    *, residual: bool, centred: bool | None = None
) -> tuple[list[float], list[float], float]:
    """Losses, each layer's gradient norm in the first update, and how far the first layer moved."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    head = nn.Linear(WIDTH, 1)
    everything = nn.ModuleList([*layers, head])
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.01)
    x = torch.randn(64, WIDTH)
    y = x @ torch.randn(WIDTH, 1)
    middle = 0.5 if (residual if centred is None else centred) else 0.0
    start = flat(layers[0].parameters())
    losses: list[float] = []
    norms: list[float] = []
    for _ in range(UPDATES):
        hidden = x
        for layer in layers:
            hidden = hidden * residual + layer(hidden).sigmoid() - middle
        loss = mse_loss(head(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        norms = norms or [gradient(layer).norm().item() for layer in layers]
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, float((flat(layers[0].parameters()) - start).norm())
