"""FL622: one update that wrote NaN or Inf into the parameters."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.numerics._at import nonfinite

UPDATES, BROKEN = 30, 2  # the learning rate of update 2 is absurd


@experiment(
    "FL622",
    claim="After one update with a huge learning rate and finite gradients every later loss is NaN, whatever the data; the "
    "same code with the weights from before is fine.",
    taught="A NaN loss before backward means that the loss function is at fault.",
)
def parameter_nonfinite() -> Measured:
    wrong, right = _train(restore=False), _train(restore=True)
    lost = sum(not math.isfinite(loss) for loss in wrong.losses)
    return Measured(
        sides={
            "wrong": {
                "non-finite weights after the step": wrong.broken_at_once,
                "updates with a non-finite loss": lost,
                "non-finite weights at the end": wrong.broken,
            },
            "right": {
                "updates with a non-finite loss": sum(
                    not math.isfinite(loss) for loss in right.losses
                ),
                "non-finite weights at the end": right.broken,
            },
        },
        conclusion=f"one step made {wrong.broken_at_once} of {wrong.weights} weights infinite; all {lost} later losses are NaN, and in the end "
        f"{wrong.broken} weights; with the weights from before it the same code on the same data goes on",
        holds={
            "the gradients of the broken update were finite": wrong.gradients_were_finite,
            "its step made parameters infinite": wrong.broken_at_once > 0,
            "every loss after it is NaN or infinite": lost == UPDATES - BROKEN - 1,
            "the loss before it is fine": math.isfinite(wrong.losses[BROKEN]),
            "restored weights are enough": right.broken == 0
            and all(map(math.isfinite, right.losses)),
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


class _train:
    """The same batches twice; `restore` puts the weights from before the broken update back."""

    def __init__(self, *, restore: bool) -> None:
        model, windows = regression(updates=UPDATES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses: list[float] = []
        for number, ((x, y),) in enumerate(windows):
            before = {name: weight.clone() for name, weight in model.state_dict().items()}
            optimizer.param_groups[0]["lr"] = 3e38 if number == BROKEN else 0.1
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if number == BROKEN:
                self.gradients_were_finite = not nonfinite(p.grad for p in model.parameters())
            optimizer.step()
            if number == BROKEN:
                self.broken_at_once = nonfinite(model.parameters())
                if restore:
                    model.load_state_dict(before)
            self.losses.append(loss.item())
        self.broken = nonfinite(model.parameters())
        self.weights = sum(p.numel() for p in model.parameters())
