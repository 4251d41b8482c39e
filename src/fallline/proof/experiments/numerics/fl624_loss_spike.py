"""FL624: one broken batch, and what it costs."""

from __future__ import annotations

import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression

UPDATES, BROKEN = 100, 50  # the targets of update 50 are three times too large


@experiment(
    "FL624",
    claim="One broken batch undoes many updates: the loss jumps far out of its range and takes long to come back; with "
    "the gradient norm clipped it hardly moves.",
)
def loss_spike() -> Measured:
    wrong, right = _train(clip=False), _train(clip=True)
    return Measured(
        sides={
            "wrong": {
                "jump, times the loss before": wrong.jump,
                "updates until it is back": wrong.back,
            },
            "right": {
                "jump, times the loss before": right.jump,
                "updates until it is back": right.back,
            },
        },
        conclusion=f"one broken batch raises the loss {wrong.jump:.0f} times and costs {wrong.back} updates; clipped at norm 1 "
        f"it is {right.jump:.1f} times what it was",
        holds={
            "the loss jumps out of its range": wrong.jump > 10,
            "one update undid more than five": wrong.back > 5,
            "clipped, it hardly moves": right.jump < 1.5,
            "and shortens the way back": right.back < wrong.back,
            "both end as good as before": wrong.losses[-1] < 2 * wrong.before
            and right.losses[-1] < 2 * right.before,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss on all data"),
    )


class _train:
    def __init__(self, *, clip: bool) -> None:
        model, windows = regression(updates=UPDATES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        all_x = torch.cat([x for ((x, _),) in windows])
        all_y = torch.cat([y for ((_, y),) in windows])
        self.losses: list[float] = []
        for number, ((x, y),) in enumerate(windows):
            target = 3 * y if number == BROKEN else y
            mse_loss(model(x), target).backward()
            if clip:
                clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                self.losses.append(mse_loss(model(all_x), all_y).item())
        self.before = max(self.losses[BROKEN - 5 : BROKEN])
        self.jump = self.losses[BROKEN] / self.before
        # How many updates the loss stays above all it was shortly before.
        self.back = sum(loss > self.before for loss in self.losses[BROKEN:])
