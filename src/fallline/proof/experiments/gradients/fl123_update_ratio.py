"""FL123: the same run with every update held at a fixed share of the weights, from a millionth to a half."""

from __future__ import annotations

from math import log10

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Trainee,
    Update,
    Window,
    beyond,
    flat,
    gradient,
    train,
)

UPDATES = 100
RATIOS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 0.5)


@experiment(
    "FL123",
    claim="A hundred updates of a millionth of the weights leave the loss where it was; from a tenth on, updates overwrite more and more of what was learned.",
)
def update_ratio() -> Measured:
    runs = {ratio: train(_held_at(ratio), updates=UPDATES).losses for ratio in RATIOS}
    start, end = runs[1e-6][0], {ratio: losses[-1] for ratio, losses in runs.items()}
    return Measured(
        sides={
            "wrong": {
                "update size over weight size": 0.5,
                f"loss after {UPDATES} updates": beyond(end[0.5], 100),
                f"loss after {UPDATES} updates of 0.3": end[0.3],
                f"loss after {UPDATES} updates of 0.1": end[0.1],
                f"loss after {UPDATES} updates of 1e-6": end[1e-6],
            },
            "right": {
                "update size over weight size": 1e-2,
                f"loss after {UPDATES} updates": end[1e-2],
                f"loss after {UPDATES} updates of 1e-3": end[1e-3],
            },
        },
        conclusion=f"from a loss of {start:.2f}, {UPDATES} updates of a millionth of the weights lead to {end[1e-6]:.2f}, of a thousandth to {end[1e-3]:.2f}, of a hundredth to {end[1e-2]:.2f}, "
        f"of a tenth to {end[0.1]:.2f}, of three tenths to {end[0.3]:.1f}, of a half to {beyond(end[0.5], 100)}",
        holds={
            "a millionth changes nothing": abs(end[1e-6] / start - 1) < 1e-3,
            "a thousandth to a hundredth learns": end[1e-3] < 0.9 * start
            and end[1e-2] < 0.1 * start,
            "a tenth ends higher than three hundredths": end[0.1] > 1.2 * end[0.03],
            "three tenths ends higher still": end[0.3] > 3 * end[0.03],
            "a half overwrites everything": not end[0.5] < start,
        },
        curves={"loss": [end[r] for r in RATIOS]},
        axes=("update size over weight size, power of ten", f"loss after {UPDATES} updates"),
        positions=[log10(r) for r in RATIOS],
    )


def _held_at(ratio: float) -> Update:
    """SGD whose learning rate makes each update exactly this share of the weights."""

    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            t.loss(x, y).backward()
        size, norm = flat(t.model.parameters()).norm(), gradient(t.model).norm()
        t.optimizer.param_groups[0]["lr"] = float(ratio * size / norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update
