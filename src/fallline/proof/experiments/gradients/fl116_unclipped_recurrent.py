"""FL116: gradients through 100 steps of a recurrence, and an RNN trained by SGD with and without clipping."""

from __future__ import annotations

from math import inf, isfinite

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import beyond

STEPS = 100
UPDATES = 40
NOTHING_LEARNED = 0.9  # the variance of the targets, three times the mean of ten normal numbers


@experiment(
    "FL116",
    claim="Backpropagation through time multiplies gradients; an RNN with recurrent weights of 1.3, trained by SGD with a rate of 0.2, is lost without clipping and learns with it.",
)
def unclipped_recurrent() -> Measured:
    shrinks, keeps, grows = (_through_time(radius) for radius in (0.9, 1.0, 1.1))
    # Two seeds: such a run is chaotic, and how far it is thrown differs from machine to machine.
    runs = [(_train(max_norm=float("inf"), seed=s), _train(max_norm=0.5, seed=s)) for s in (0, 1)]
    (wrong, wrong_norm), (right, right_norm) = runs[0]
    thrown = min(_highest(unclipped) for (unclipped, _), _ in runs)
    learned = max(sum(clipped[-10:]) / 10 for _, (clipped, _) in runs)
    return Measured(
        sides={
            "wrong": {
                "gradient of 1 after 100 steps, radius 0.9": shrinks,
                "gradient of 1 after 100 steps, radius 1.1": grows,
                "largest norm": beyond(wrong_norm, 1e6),
                "highest loss, the lower of two runs": beyond(thrown, 1e6),
            },
            "right": {
                "gradient of 1 after 100 steps, radius 1.0": keeps,
                "largest norm": right_norm,
                "mean of the last 10 losses, the higher of two runs": learned,
            },
        },
        conclusion=f"over {STEPS} steps a gradient of 1 becomes {shrinks:.1e}, {keeps:.1f} or {grows:.1e} for a spectral radius of 0.9, 1.0 or 1.1; an RNN's loss goes to "
        f"{beyond(thrown, 1e6)} without clipping, and with it ends below {NOTHING_LEARNED:g}, the loss of guessing the mean",
        holds={
            "a radius of 0.9 shrinks it": shrinks < 1e-4,
            "a radius of 1.1 multiplies it": grows > 1e4,
            "without clipping both runs are lost": thrown > 1e6,
            "with clipping both learn": learned < 0.8 * NOTHING_LEARNED,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "loss"),
    )


def _through_time(radius: float) -> float:
    """The norm of a gradient of 1 after 100 steps back through h = W h, W with this spectral radius."""
    torch.manual_seed(0)
    weight = radius * torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0]
    state = start = torch.randn(32, dtype=torch.float64, requires_grad=True)
    for _ in range(STEPS):
        state = weight @ state
    state[0].backward()
    assert start.grad is not None
    return float(start.grad.norm())


def _highest(losses: list[float]) -> float:
    return max(loss if isfinite(loss) else inf for loss in losses)


def _train(*, max_norm: float, seed: int) -> tuple[list[float], float]:
    """Losses of an RNN that learns the mean of its last ten inputs, and its largest norm."""
    torch.manual_seed(seed)
    rnn, head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
    nn.init.orthogonal_(dict(rnn.named_parameters())["weight_hh_l0"], gain=1.3)
    parameters = [*rnn.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.2)
    losses, norms = [], []
    for _ in range(UPDATES):
        x = torch.randn(32, 60, 2)
        loss = (head(rnn(x)[0][:, -1, :]) - 3 * x[:, -10:, :1].mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip_grad_norm_(parameters, max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, _highest(norms)
