"""FL625: a loss that does not move although the gradients agree on a direction."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import cosine, gradient

UPDATES = 40


@experiment(
    "FL625",
    claim="With a learning rate far too small, or an optimizer that holds other tensors, the loss stays where it was "
    "although successive gradients point the same way; gradients of pure noise do not.",
)
def loss_flat() -> Measured:
    right = _train(lr=0.05)
    tiny, others = _train(lr=1e-9), _train(lr=0.05, others=True)
    noise = _train(lr=0.0, noise=True)
    return Measured(
        sides={
            "wrong": {
                "share by which the loss moved": tiny.moved,
                "agreement of successive gradients": tiny.agreement,
            },
            "right": {
                "share by which the loss moved": right.moved,
                "agreement of successive gradients": right.agreement,
            },
            "optimizer of other tensors": {
                "share by which the loss moved": others.moved,
                "agreement of successive gradients": others.agreement,
            },
            "targets of pure noise": {"agreement of successive gradients": noise.agreement},
        },
        conclusion=f"at a learning rate of 1e-9 successive gradients agree (cosine {tiny.agreement:.1f}) and the loss moves by {tiny.moved:.0%}, "
        f"with an optimizer of other tensors by {others.moved:.0%}, done right by {right.moved:.0%}; gradients of noise have a cosine of "
        f"{abs(noise.agreement):.1f}",
        holds={
            "a tiny learning rate leaves the loss where it was": tiny.moved < 0.01,
            "so does an optimizer of other tensors": others.moved < 0.01,
            "in both the gradients point the same way": min(tiny.agreement, others.agreement) > 0.3,
            "gradients of noise do not": abs(noise.agreement) < 0.2,
            "done right the loss falls": right.moved > 0.5,
        },
        curves={"wrong": tiny.losses, "right": right.losses},
        axes=("update", "loss on all data"),
    )


class _train:
    def __init__(self, *, lr: float, others: bool = False, noise: bool = False) -> None:
        model, windows = regression(updates=UPDATES)
        trained = (
            deepcopy(model) if others else model
        )  # the optimizer was built before the model was replaced
        optimizer = torch.optim.SGD(trained.parameters(), lr=lr)
        all_x = torch.cat([x for ((x, _),) in windows])
        all_y = torch.cat([y for ((_, y),) in windows])
        self.losses: list[float] = []
        gradients = []
        for ((x, y),) in windows:
            target = model(x).detach() + torch.randn_like(y) if noise else y
            model.zero_grad()
            mse_loss(model(x), target).backward()
            gradients.append(gradient(model))
            optimizer.step()
            with torch.no_grad():
                self.losses.append(mse_loss(model(all_x), all_y).item())
        pairs = [cosine(a, b) for a, b in zip(gradients[::2], gradients[1::2], strict=True)]
        self.agreement = sum(pairs) / len(pairs)
        self.moved = abs(1 - self.losses[-1] / self.losses[0])
