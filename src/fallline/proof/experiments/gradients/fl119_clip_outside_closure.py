"""FL119: LBFGS with the clip outside the closure, inside it, nowhere, and with a line search instead."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Run,
    Trainee,
    Window,
    beyond,
    largest,
    train,
)

MAX_NORM = 1.0


@experiment(
    "FL119",
    claim="A clip outside the closure changes nothing; inside it, one that takes effect distorts LBFGS's estimate of the curvature, and the loss jumps; with a line search and no clip it never rises.",
    taught="Clipping works with any optimizer.",
)
def clip_outside_closure() -> Measured:
    wrong, _ = _train("outside")
    never, curvature = _train("nowhere")
    inside, falsified = _train("inside")
    idle, _ = _train("inside", max_norm=1e6)
    right, _ = _train("nowhere", line_search_fn="strong_wolfe")
    difference = largest(wrong.parameters, never.parameters)
    return Measured(
        sides={
            "wrong": {
                "difference to no clipping at all": difference,
                "highest loss": beyond(max(wrong.losses), 100),
                "highest loss, clipped inside the closure": beyond(max(inside.losses), 100),
                "curvature after the first update, clipped inside": falsified,
                "loss after 20 updates": wrong.losses[-1],
            },
            "right": {
                "curvature after the first update, without a clip": curvature,
                "highest loss": beyond(max(right.losses), 100),
                "loss after 20 updates": right.losses[-1],
            },
        },
        conclusion=f"clipped at {MAX_NORM:g} outside the closure the parameters differ by {difference:g} from a run without clipping; clipped inside it, LBFGS takes the loss "
        f"from {inside.losses[0]:.1f} to {beyond(max(inside.losses), 100)}, having estimated a curvature of {falsified:.1f} instead of {curvature:.1f}, and with a line search and no clip to {right.losses[-1]:.1f}",
        holds={
            "outside the closure the clip changes nothing": difference == 0,
            "without a clip the loss falls tenfold": 10 * never.losses[-1] < never.losses[0],
            "a clip inside that binds falsifies the curvature": falsified < 0.75 * curvature,
            "and LBFGS jumps to ten times its start": max(inside.losses) > 10 * inside.losses[0],
            "one that never binds changes nothing": largest(idle.parameters, never.parameters) == 0,
            "with a line search it never rises above its start": max(right.losses)
            == right.losses[0],
        },
        curves={
            "wrong": wrong.losses,
            "right": right.losses,
            "inside": inside.losses,
        },
        axes=("update", "loss"),
    )


def _train(
    clip: str, *, max_norm: float = MAX_NORM, line_search_fn: str | None = None
) -> tuple[Run, float]:
    """The run, and the curvature that LBFGS had estimated after its first update."""
    estimates: list[float] = []

    def update(t: Trainee, window: Window) -> None:
        def closure() -> Tensor:
            t.optimizer.zero_grad()
            loss = t.loss(*window[0])
            loss.backward()
            if clip == "inside":
                clip_grad_norm_(t.model.parameters(), max_norm)
            return loss

        if clip == "outside":
            closure()
            clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step(closure)  # type: ignore[arg-type]
        (state,) = t.optimizer.state.values()
        estimates.append(1 / float(state["H_diag"]))

    optimizer = partial(torch.optim.LBFGS, max_iter=4, line_search_fn=line_search_fn)
    return train(update, optimizer=optimizer, lr=0.1, updates=20), estimates[0]
