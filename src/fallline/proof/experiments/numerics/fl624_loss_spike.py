"""FL624: one broken batch, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression

UPDATES, BROKEN = 100, 50  # the targets of update 50 are three times too large
RUNS = 5  # on average: what one batch does depends on the batch


@experiment(
    "FL624",
    claim="One broken batch undoes many updates: the loss jumps far out of its range and takes long to come back; with "
    "the gradient norm clipped it hardly moves.",
)
def loss_spike() -> Measured:
    wrong = [_train(seed, clip=False) for seed in range(RUNS)]
    right = [_train(seed, clip=True) for seed in range(RUNS)]
    jump, clipped = _mean(r.jump for r in wrong), _mean(r.jump for r in right)
    back, clipped_back = _mean(r.back for r in wrong), _mean(r.back for r in right)
    return Measured(
        sides={
            "wrong": {"jump, times the loss before": jump, "updates until it is back": back},
            "right": {
                "jump, times the loss before": clipped,
                "updates until it is back": clipped_back,
            },
        },
        conclusion=f"one broken batch raises the loss {jump:.0f} times and costs {back:.0f} updates on average of {RUNS} runs; clipped at norm 1 "
        f"it is {clipped:.1f} times what it was",
        holds={
            "the loss jumps out of its range": jump > 5,
            "in every run": min(r.jump for r in wrong) > 1.5,
            "one update undid more than five": back > 5,
            "clipped, it hardly moves": clipped < 1.5,
            "and shortens the way back": clipped_back < back,
            "all end as good as before": all(
                run.losses[-1] < 2 * run.before for run in (*wrong, *right)
            ),
        },
        curves={"wrong": wrong[0].losses, "right": right[0].losses},
        axes=("update", "loss on all data"),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


class _train:
    def __init__(self, seed: int, *, clip: bool) -> None:
        model, windows = regression(updates=UPDATES, seed=seed)
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
