"""FL203: optimizer.step() and scaler.step(optimizer), on ordinary gradients and on an overflow."""

from __future__ import annotations

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Run, Trainee, Update, Window, train
from fallline.proof.experiments.precision._scaled import scaled, scaled_backward

OVERFLOW = 5  # the update with an infinite gradient


@experiment(
    "FL203",
    claim="optimizer.step() steps scaled gradients 65536 times too far; after unscale_ it steps an overflow that scaler.step would skip, and the parameters are lost.",
)
def scaler_bypassed() -> Measured:
    far = train(_bypassed, updates=1).steps[0] / train(scaled(), updates=1).steps[0]
    wrong, right = (
        _with_overflow(update, torch.optim.Adam) for update in (_bypassed_unscaled, scaled())
    )
    sgd = _with_overflow(_bypassed_unscaled, torch.optim.SGD).moves[OVERFLOW]
    at_once, later, kept = map(_lost, (wrong.moves[OVERFLOW], wrong.parameters, right.parameters))
    return Measured(
        sides={
            "wrong": {
                "first SGD step, times too long": far,
                "parameters lost in the step with an overflow": at_once,
                "parameters lost at the end": later,
                "what SGD's one parameter became": "infinite" if sgd.isinf().any() else "finite",
            },
            "right": {
                "first SGD step, times too long": 1.0,
                "parameters lost at the end": kept,
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"without unscale_ the SGD step is {far:,.0f} times too long; with it one infinite gradient destroys {at_once} of {wrong.parameters.numel()} parameters at once "
        f"and {later} in the end, where scaler.step leaves the step out and loses {kept}",
        holds={
            "the step is 65536 times too long": abs(far / 65536 - 1) < 1e-3,
            "an overflow that is stepped destroys its parameter": at_once == 1,
            "with SGD it is infinite": int(sgd.isinf().sum()) == _lost(sgd) == 1,
            "with Adam it is NaN": int(wrong.moves[OVERFLOW].isnan().sum()) == 1,
            "and then all the others": later == wrong.parameters.numel(),
            "scaler.step skips it": kept == 0 and right.steps[OVERFLOW] == 0,
            "and trains on": right.losses[-1] < 0.1 * right.losses[0],
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _bypassed(t: Trainee, window: Window) -> None:
    scaled_backward(t, window)
    t.optimizer.step()


def _bypassed_unscaled(t: Trainee, window: Window) -> None:
    scaled_backward(t, window)
    t.scaler.unscale_(t.optimizer)
    t.optimizer.step()
    t.scaler.update()
    t.optimizer.zero_grad()


def _with_overflow(update: Update, optimizer: type[torch.optim.Optimizer]) -> Run:
    """A run in which one gradient value of one update is infinite."""

    def overflowing(t: Trainee, window: Window) -> None:
        first = next(t.model.parameters())
        overflow = first.register_hook(_one_infinite) if t.number == OVERFLOW else None
        update(t, window)
        if overflow is not None:
            overflow.remove()

    return train(overflowing, optimizer=optimizer)


def _one_infinite(gradient: Tensor) -> Tensor:
    gradient = gradient.clone()
    gradient[0, 0] = float("inf")
    return gradient


def _lost(values: Tensor) -> int:
    return int((~values.isfinite()).sum())
