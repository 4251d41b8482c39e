"""FL202: a second unscale_ before and after the step, and what it leaves of the gradients."""

from __future__ import annotations

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import Trainee, Window, gradient, train
from fallline.proof.experiments.precision._scaled import scaled_backward


@experiment(
    "FL202",
    claim="A second unscale_ raises RuntimeError and leaves the gradients as they are.",
    taught="A second unscale_ makes the gradients too small, so that training is slow.",
)
def unscale_twice() -> Measured:
    seen: dict[str, str | int] = {}

    def update(t: Trainee, window: Window) -> None:
        scaled_backward(t, window)
        t.scaler.unscale_(t.optimizer)
        once = gradient(t.model)
        seen["second unscale_"] = error_of(lambda: t.scaler.unscale_(t.optimizer))
        seen["changed"] = int((once != gradient(t.model)).sum())
        seen["gradients"] = once.numel()
        t.scaler.step(t.optimizer)
        seen["unscale_ after step"] = error_of(lambda: t.scaler.unscale_(t.optimizer))
        t.scaler.update()
        t.optimizer.zero_grad()
        scaled_backward(t, window)
        seen["once per update"] = error_of(lambda: t.scaler.unscale_(t.optimizer))

    train(update, updates=1)
    return Measured(
        sides={
            "wrong": {
                "unscale_ raises": seen["second unscale_"],
                "unscale_ after step raises": seen["unscale_ after step"],
                "gradients changed by it": seen["changed"],
            },
            "right": {
                "unscale_ raises": seen["once per update"],
            },
        },
        conclusion=f"a second unscale_ raises {seen['second unscale_']}, one after the step {seen['unscale_ after step']}, and {seen['changed']} of {seen['gradients']} gradients have changed; once per update it raises {seen['once per update']}",
        holds={
            "a second unscale_ raises": seen["second unscale_"] == "RuntimeError",
            "one after the step raises": seen["unscale_ after step"] == "RuntimeError",
            "the gradients are not divided twice": seen["changed"] == 0,
            "once per update is fine": seen["once per update"] == "none",
        },
    )
