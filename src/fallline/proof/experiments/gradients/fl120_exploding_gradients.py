"""FL120: halfway through, the learning rate is raised eightfold; the norms explode, unless they are clipped."""

from __future__ import annotations

from statistics import median

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Run,
    Trainee,
    Update,
    Window,
    beyond,
    clipped,
    plain,
    train,
)

JUMP = 20
FACTOR = 8.0
HEALTHY = 1.0  # near the norms before the jump


@experiment(
    "FL120",
    claim="Exploding norms rise two orders of magnitude above the run's own and the loss does not come back; a clip near the healthy norms prevents it.",
    taught="A norm above 100 is exploding.",
)
def exploding_gradients() -> Measured:
    wrong, right = _with_jump(plain), _with_jump(clipped(HEALTHY))
    usual = median(wrong.norms[5:JUMP])
    worst, bounded = _largest(wrong) / usual, _largest(right) / usual
    # A loss in other units: every norm is above 100 and nothing is wrong.
    units = train(_in_other_units, lr=0.05 / 1e4)
    return Measured(
        sides={
            "wrong": {
                "largest norm, times the usual one": beyond(worst, 1000),
                "loss at the end": beyond(wrong.losses[-1], 100),
            },
            "right": {
                "largest norm, times the usual one": bounded,
                "loss at the end": right.losses[-1],
                "smallest norm of a healthy run in other units": min(units.norms),
            },
        },
        conclusion=f"after the jump the norm reaches {beyond(worst, 1000)} times the usual one and the loss ends at {beyond(wrong.losses[-1], 100)}, having begun at {wrong.losses[0]:.1f}; "
        f"clipped it ends at {right.losses[-1]:.1f}; a healthy run with its loss in other units never has a norm below {min(units.norms):.0f}",
        holds={
            "norms rise two orders of magnitude": worst > 100,
            "the loss does not come back": not wrong.losses[-1] <= wrong.losses[0],
            "clipped near the healthy norms it stays": right.losses[-1] < right.losses[0] / 4,
            "a large norm alone says nothing": min(units.norms) > 100
            and units.losses[-1] < 0.1 * units.losses[0],
        },
        curves={"wrong": wrong.norms, "right": right.norms},
        axes=("update", "gradient norm"),
    )


def _largest(run: Run) -> float:
    return max(run.norms[JUMP:])


def _with_jump(update: Update) -> Run:
    def jumping(t: Trainee, window: Window) -> None:
        if t.number == JUMP:
            t.optimizer.param_groups[0]["lr"] *= FACTOR
        update(t, window)

    return train(jumping)


def _in_other_units(t: Trainee, window: Window) -> None:
    for x, y in window:
        (1e4 * t.loss(x, y)).backward()
    t.optimizer.step()
    t.optimizer.zero_grad()
