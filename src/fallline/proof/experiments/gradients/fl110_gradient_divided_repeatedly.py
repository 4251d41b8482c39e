"""FL110: .grad divided after every micro-batch, against the loss divided by k."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, cosine, off, plain, train

K = 4


@experiment(
    "FL110",
    claim="Dividing .grad after every micro-batch weights the first one 1/k^k and the last one 1/k: a different gradient, in a different direction.",
    taught="Scaling the gradients in every micro-step is merely inefficient.",
)
def gradient_divided_repeatedly() -> Measured:
    wrong, right = train(_divided_each_time, k=K), train(plain, k=K)
    once = train(_divided_once, k=K)
    weights = _weights()
    turned, away = (f(wrong.gradients[0], right.gradients[0]) for f in (cosine, off))
    return Measured(
        sides={
            "wrong": {
                "weight of the first micro-batch": weights[0],
                "weight of the last micro-batch": weights[-1],
                "first gradient off by, percent": 100 * away,
                "first gradient's cosine to the right one": turned,
                "loss after 40 updates": wrong.losses[-1],
            },
            "right": {
                "weight of the first micro-batch": 1 / K,
                "weight of the last micro-batch": 1 / K,
                "loss after 40 updates": right.losses[-1],
                "off by if .grad is divided once": off(once.gradients[0], right.gradients[0]),
            },
        },
        conclusion=f"with k = {K} the micro-batches weigh {', '.join(f'1/{round(1 / w)}' for w in weights)}: the first gradient is {away:.0%} off, "
        f"cosine {turned:.2f}; divided once before the step it is right",
        holds={
            "the weights are 1/256, 1/64, 1/16, 1/4": weights == [K ** -(K - i) for i in range(K)],
            "the gradient is far off": away > 0.4,
            "and points elsewhere": turned < 0.97,
            "one division before the step is the same as dividing the loss": off(
                once.gradients[0], right.gradients[0]
            )
            < 1e-6,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _weights() -> list[float]:
    """One weight for each micro-batch, whose own gradient is 1: what is left of it in the end."""
    weight = torch.zeros(K, requires_grad=True)
    weight.grad = torch.zeros(K)
    for i in range(K):
        weight[i].backward()
        weight.grad /= K
    return [float(w) for w in weight.grad]


def _divide_gradients(t: Trainee) -> None:
    for parameter in t.model.parameters():
        assert parameter.grad is not None
        parameter.grad /= K


def _divided_each_time(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
        _divide_gradients(t)
    t.optimizer.step()
    t.optimizer.zero_grad()


def _divided_once(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
    _divide_gradients(t)
    t.optimizer.step()
    t.optimizer.zero_grad()
