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
    claim="A clip outside the closure changes nothing; inside it one that binds falsifies LBFGS's curvature; a line search bounds the step.",
    taught="Clipping works with any optimizer.",
)
def clip_outside_closure() -> Measured:
    wrong, never, inside = _train("outside"), _train("nowhere"), _train("inside")
    right = _train("nowhere", line_search_fn="strong_wolfe")
    difference = largest(wrong.parameters, never.parameters)
    return Measured(
        sides={
            "wrong": {
                "difference to no clipping at all": difference,
                "highest loss": max(wrong.losses),
                "highest loss, clipped inside the closure": beyond(max(inside.losses), 100),
                "loss after 20 updates": wrong.losses[-1],
            },
            "right": {
                "highest loss": max(right.losses),
                "loss after 20 updates": right.losses[-1],
            },
        },
        conclusion=f"clipped at {MAX_NORM:g} outside the closure the parameters differ by {difference:g} from a run without clipping; clipped inside it, LBFGS takes the loss "
        f"from {inside.losses[0]:.1f} to {beyond(max(inside.losses), 100)}, and with a line search and no clip to {right.losses[-1]:.1f}",
        holds={
            "outside the closure the clip changes nothing": difference == 0,
            "inside it LBFGS jumps": max(inside.losses) > 100,
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


def _train(clip: str, line_search_fn: str | None = None) -> Run:
    def update(t: Trainee, window: Window) -> None:
        def closure() -> Tensor:
            t.optimizer.zero_grad()
            loss = t.loss(*window[0])
            loss.backward()
            if clip == "inside":
                clip_grad_norm_(t.model.parameters(), MAX_NORM)
            return loss

        if clip == "outside":
            closure()
            clip_grad_norm_(t.model.parameters(), MAX_NORM)
        t.optimizer.step(closure)  # type: ignore[arg-type]

    optimizer = partial(torch.optim.LBFGS, max_iter=4, line_search_fn=line_search_fn)
    return train(update, optimizer=optimizer, lr=0.1, updates=20)
