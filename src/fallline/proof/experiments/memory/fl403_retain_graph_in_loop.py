"""FL403: backward(retain_graph=True) on every iteration, with nothing that uses the graph again."""

from __future__ import annotations

import torch
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.memory._live import SavedForBackward


@experiment(
    "FL403",
    claim="A retained graph lives until the next iteration has built its own: two at the peak, for the same losses.",
)
def retain_graph_in_loop() -> Measured:
    wrong, right = _train(retain=True), _train(retain=False)
    ratio = wrong.peak / right.peak
    return Measured(
        sides={
            "wrong": {"peak bytes saved for backward": wrong.peak, "last loss": wrong.losses[-1]},
            "right": {"peak bytes saved for backward": right.peak, "last loss": right.losses[-1]},
        },
        conclusion=f"at the peak {ratio:.1f} times the activations are alive with retain_graph=True, "
        "and the losses are the same",
        holds={
            "two graphs are alive at the peak": abs(ratio - 2) < 0.1,
            "without the flag nothing is left after backward": max(right.after_backward) == 0,
            "the flag changes no loss": wrong.losses == right.losses,
        },
        curves={"wrong": wrong.after_backward, "right": right.after_backward},
        axes=("iteration", "bytes alive after backward"),
    )


class _train:
    """20 updates; the loss keeps its name, so an old graph goes only when the new loss exists."""

    def __init__(self, *, retain: bool) -> None:
        model, windows = regression(updates=20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses: list[float] = []
        self.after_backward: list[int] = []
        with SavedForBackward(model) as saved:
            for ((x, y),) in windows:
                loss = mse_loss(model(x), y)
                loss.backward(retain_graph=retain)
                self.after_backward.append(saved.now)
                optimizer.step()
                optimizer.zero_grad()
                self.losses.append(loss.item())
        self.peak = saved.peak
