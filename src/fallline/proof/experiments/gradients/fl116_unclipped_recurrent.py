"""FL116: gradients through 100 steps of a recurrence, and an RNN trained by SGD with and without clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import beyond

STEPS = 100
UPDATES = 40
SHRINKS, ENLARGES = 0.5, 1.3  # the size of the recurrent weights at the start


@experiment(
    "FL116",
    claim="Backpropagation through time multiplies gradients: where the recurrence enlarges them, SGD loses the run without clipping and learns with it; where it shrinks them, SGD keeps the run without clipping.",
)
def unclipped_recurrent() -> Measured:
    shrinks, keeps, grows = (_through_time(radius) for radius in (0.9, 1.0, 1.1))
    wrong, wrong_norm = _train(ENLARGES, max_norm=float("inf"))
    right, right_norm = _train(ENLARGES, max_norm=1.0)
    shrinking, _ = _train(SHRINKS, max_norm=float("inf"))
    others = [_train(ENLARGES, max_norm=limit, seed=1)[0] for limit in (float("inf"), 1.0)]
    return Measured(
        sides={
            "wrong": {
                "gradient of 1 after 100 steps, radius 0.9": shrinks,
                "gradient of 1 after 100 steps, radius 1.1": grows,
                "largest norm in the first 10 updates": wrong_norm,
                "loss after 40 updates": beyond(wrong[-1], 1e6),
            },
            "right": {
                "gradient of 1 after 100 steps, radius 1.0": keeps,
                "largest norm in the first 10 updates": right_norm,
                "loss after 40 updates": right[-1],
                "loss after 40 updates, a recurrence that shrinks, unclipped": shrinking[-1],
            },
        },
        conclusion=f"over {STEPS} steps a gradient of 1 becomes {shrinks:.1e}, {keeps:.1f} or {grows:.1e} for a spectral radius of 0.9, 1.0 or 1.1; an RNN that SGD "
        f"trains to a loss of {right[-1]:.1f} with clipping ends at {beyond(wrong[-1], 1e6)} without; with recurrent weights of {SHRINKS:g} instead of {ENLARGES:g} it ends at {shrinking[-1]:.1f} without",
        holds={
            "a radius of 0.9 shrinks it": shrinks < 1e-4,
            "a radius of 1.1 multiplies it": grows > 1e4,
            "without clipping the run is lost": not wrong[-1] < 1e6,
            "with clipping it learns": right[-1] < 0.5 * right[0],
            "with another seed it is the same": not others[0][-1] < 1e6
            and others[1][-1] < 0.5 * others[1][0],
            "where the recurrence shrinks gradients, nothing is lost without clipping": shrinking[
                -1
            ]
            < shrinking[0],
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


def _train(size: float, *, max_norm: float, seed: int = 0) -> tuple[list[float], float]:
    """Losses of an RNN that learns the mean of its last ten inputs, and its largest early norm."""
    torch.manual_seed(seed)
    rnn, head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
    nn.init.orthogonal_(dict(rnn.named_parameters())["weight_hh_l0"], gain=size)
    parameters = [*rnn.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses, norms = [], []
    for _ in range(UPDATES):
        x = torch.randn(32, 60, 2)
        loss = (head(rnn(x)[0][:, -1, :]) - 3 * x[:, -10:, :1].mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip_grad_norm_(parameters, max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, max(norms[:10])
