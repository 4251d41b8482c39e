"""FL105: zero_grad between the micro-batches of a window, and between the last backward and the step."""

from __future__ import annotations

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, cosine, plain, train

K = 4


@experiment(
    "FL105",
    claim="zero_grad inside the window leaves only the last micro-batch, divided by k on top; just before the step nothing is learned at all.",
)
def accumulation_wiped() -> Measured:
    wrong, right = train(_cleared_each, k=K), train(plain, k=K)
    before_step = train(_cleared_before_step, k=K)
    length = wrong.norms[0] / right.norms[0]
    turned = cosine(wrong.gradients[0], right.gradients[0])
    last_alone = train(_last_alone, updates=1, k=K)
    same = cosine(wrong.gradients[0], last_alone.gradients[0])
    return Measured(
        sides={
            "wrong": {
                "first gradient's norm": wrong.norms[0],
                "first gradient's cosine to the big batch's": turned,
                "loss after 40 updates": wrong.losses[-1],
                "distance moved, cleared just before each step": sum(before_step.steps),
            },
            "right": {
                "first gradient's norm": right.norms[0],
                "first gradient's cosine to the big batch's": 1.0,
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"cleared inside a window of {K}, the gradient is {length:.2f} of the big batch's (cosine {turned:.2f}); cleared just before "
        f"the step, the parameters moved {sum(before_step.steps):g} in {len(before_step.steps)} updates",
        holds={
            "only the last micro-batch is left": same > 1 - 1e-6,
            "divided by k although it is alone": abs(wrong.norms[0] * K / last_alone.norms[0] - 1)
            < 1e-5,
            "the gradient is too short": length < 0.6,
            "cleared just before the step, nothing moves": sum(before_step.steps) == 0,
        },
        curves={
            "wrong": wrong.losses,
            "right": right.losses,
            "before the step": before_step.losses,
        },
        axes=("update", "loss"),
    )


def _cleared_each(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.optimizer.zero_grad()
        (t.loss(x, y) / K).backward()
    t.optimizer.step()


def _cleared_before_step(t: Trainee, window: Window) -> None:
    for x, y in window:
        (t.loss(x, y) / K).backward()
    t.optimizer.zero_grad()
    t.optimizer.step()


def _last_alone(t: Trainee, window: Window) -> None:
    plain(t, window[-1:])
