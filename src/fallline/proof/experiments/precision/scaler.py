"""GradScaler: its schedule, its order of calls, and what happens to skipped steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import Trainee, Window, flat, gradient, off, train

SCALE = 2.0**16
SGD, Adam = torch.optim.SGD, torch.optim.Adam


class _Step:
    """One parameter vector, its optimizer and a scaler, with a gradient as backward would leave it."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = SGD, **options: Any) -> None:
        self.parameter = nn.Parameter(torch.zeros(4))
        self.optimizer = optimizer([self.parameter], lr=0.1, **options)  # type: ignore[call-arg]
        self.scaler = GradScaler("cpu")

    def backward(self, *, inf: bool = False) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.parameter.sum()).backward()
        if inf:
            assert self.parameter.grad is not None
            self.parameter.grad[0] = float("inf")

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _update_before_step() -> str:
    """What update() raises after a scaled backward that nobody unscaled or stepped."""
    step = _Step()
    step.backward()
    return error_of(step.scaler.update)


@experiment(
    "loss-scale-schedule",
    claim="The scale starts at 65536, halves at each inf, and doubles only after 2000 clean steps in a row.",
    taught="The scale factor doubles on success and halves on inf or NaN.",
)
def loss_scale_schedule() -> Measured:
    step = _Step()
    scales = [step.scaler.get_scale()]
    for update in range(1, 2151):
        step.backward(inf=update == 100)
        step.step()
        scales.append(step.scaler.get_scale())
    changes = [i for i in range(1, len(scales)) if scales[i] != scales[i - 1]]
    return Measured(
        sides={
            "at the start": {"scale": scales[0]},
            "an inf at update 100": {"scale": scales[100]},
            "at update 2000": {"scale": scales[2000]},
            "2000 clean steps after the inf": {"scale": scales[2100]},
        },
        conclusion=f"{scales[0]:.0f} at first, {scales[100]:.0f} after the inf at update 100, {scales[2100]:.0f} again at update {changes[-1]}",
        holds={
            "starts at 65536": scales[0] == SCALE,
            "halves at the inf": scales[100] == SCALE / 2,
            "changes only there and 2000 clean steps later": changes == [100, 2100],
            "doubles then": scales[2100] == SCALE,
        },
        curves={"scale": scales[::25]},
        axes=("update / 25", "scale"),
    )


@experiment(
    "unscale-twice-raises",
    claim="A second unscale_ before update(), or one after step(), raises and leaves the gradients as they are.",
    taught="Calling unscale_ twice makes gradients too small.",
)
def unscale_twice_raises() -> Measured:
    step = _Step()
    step.backward()
    step.scaler.unscale_(step.optimizer)
    assert step.parameter.grad is not None
    once = step.parameter.grad.clone()
    twice = error_of(lambda: step.scaler.unscale_(step.optimizer))
    same = bool(torch.equal(once, step.parameter.grad))
    step.scaler.step(step.optimizer)
    after = error_of(lambda: step.scaler.unscale_(step.optimizer))
    still = bool(torch.equal(once, step.parameter.grad))
    return Measured(
        sides={
            "unscale_ again": {"raises": twice, "gradients unchanged": same},
            "unscale_ after step": {"raises": after, "gradients unchanged": still},
        },
        conclusion=f"a second unscale_ raises {twice}, one after step {after}; neither changes a gradient",
        holds={
            "both raise": twice == after == "RuntimeError",
            "gradients unchanged": same and still,
        },
    )


@experiment(
    "amp-order",
    claim="unscale_, clip, step, update is right: step does not unscale again, and the result is that of training without a scaler.",
)
def amp_order() -> Measured:
    def scaled(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.scaler.scale(t.loss(x, y)).backward()
        t.scaler.unscale_(t.optimizer)
        clip_grad_norm_(t.model.parameters(), 1.0)
        t.scaler.step(t.optimizer)
        t.scaler.update()
        t.optimizer.zero_grad()

    def unscaled(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.loss(x, y).backward()
        clip_grad_norm_(t.model.parameters(), 1.0)
        t.optimizer.step()
        t.optimizer.zero_grad()

    with_scaler, without = train(scaled), train(unscaled)
    error = off(with_scaler.parameters, without.parameters)
    early = _update_before_step()
    return Measured(
        sides={
            "with a scaler": {"loss after 40 updates": with_scaler.losses[-1]},
            "without": {"loss after 40 updates": without.losses[-1]},
        },
        conclusion="after 40 clipped updates the weights with and without a scaler are the same to 1e-6"
        if error < 1e-6
        else f"the weights differ by {error:g}",
        holds={
            "the same training": error < 1e-6,
            "update() before step raises": early == "AssertionError",
        },
    )


@experiment(
    "scaler-bypass-loses-skipping",
    claim="optimizer.step() instead of scaler.step() writes an inf gradient into the weights; scaler.step() skips it.",
)
def scaler_bypass_loses_skipping() -> Measured:
    def nonfinite(bypass: bool) -> tuple[int, float]:
        step = _Step()
        step.backward(inf=True)
        step.scaler.unscale_(step.optimizer)
        if bypass:
            step.optimizer.step()
        else:
            step.scaler.step(step.optimizer)
        step.scaler.update()
        return int((~step.parameter.isfinite()).sum()), step.scaler.get_scale()

    bypassed, skipped = nonfinite(True), nonfinite(False)
    plain, whole = _Step(), _Step()
    plain.backward()
    plain.optimizer.step()  # neither unscale_ nor scaler.step
    whole.backward()
    whole.step()
    factor = float(plain.parameter.detach().norm() / whole.parameter.detach().norm())
    return Measured(
        sides={
            "optimizer.step()": {
                "weights not finite, of 4": bypassed[0],
                "scale afterwards": bypassed[1],
                "step without unscale_, times too long": factor,
            },
            "scaler.step()": {
                "weights not finite, of 4": skipped[0],
                "scale afterwards": skipped[1],
                "step without unscale_, times too long": 1.0,
            },
        },
        conclusion=f"with one inf gradient optimizer.step() breaks {bypassed[0]} weight, scaler.step() {skipped[0]}; without unscale_ its step is {factor:,.0f} times too long",
        holds={
            "bypassed: a broken weight": bypassed[0] == 1,
            "scaler.step(): none": skipped[0] == 0,
            "update() halves the scale both times": bypassed[1] == skipped[1] == SCALE / 2,
            "without unscale_ 65536 times too long": abs(factor / SCALE - 1) < 1e-3,
        },
    )


@experiment(
    "update-once-per-window",
    claim="update() belongs once at the window's end: without a step it raises, a scale that changes inside weighs micro-batches differently, and one inf drops the whole window.",
)
def update_once_per_window() -> Measured:
    def window(
        *, doubled_after: int | None = None, inf_at: int | None = None
    ) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        model, scaler = nn.Linear(4, 1), GradScaler("cpu")
        optimizer = SGD(model.parameters(), lr=0.1)
        start = flat(model.parameters())
        for i, x in enumerate(torch.randn(4, 8, 4)):
            scaler.scale(model(x).pow(2).mean() / 4).backward()
            if i == inf_at:
                model.weight.grad[0, 0] = float("inf")  # type: ignore[index]
            if i + 1 == doubled_after:
                scaler.update(2 * SCALE)
        scaler.unscale_(optimizer)
        found = gradient(model)
        scaler.step(optimizer)
        return found, float((flat(model.parameters()) - start).norm())

    right, moved = window()
    mixed, moved_mixed = window(doubled_after=2)
    _, dropped = window(inf_at=1)
    alone = _update_before_step()
    return Measured(
        sides={
            "one scale": {"length of the update": moved, "gradient error": 0.0},
            "scale doubled after 2 of 4": {
                "length of the update": moved_mixed,
                "gradient error": off(mixed, right),
            },
            "inf in 1 of 4 micro-batches": {
                "length of the update": dropped,
                "gradient error": "not finite",
            },
        },
        conclusion=f"a scale doubled in the middle makes the gradient {100 * off(mixed, right):.0f}% off; one inf micro-batch of four makes the update {dropped:g}; update() without a step raises {alone}",
        holds={
            "a changed scale is an error of more than 10 percent": off(mixed, right) > 0.1,
            "one inf drops all four": dropped == 0 and moved > 0,
            "update() alone raises": alone == "AssertionError",
        },
    )


@experiment(
    "scheduler-and-skipped-steps",
    claim="A skipped step still moves the learning rate; torch warns only if it was the first step, and never with a fused optimizer.",
)
def scheduler_and_skipped_steps() -> Measured:
    def run(inf_at: int, **options: Any) -> tuple[int, float]:
        step = _Step(SGD, **options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(step.optimizer, lambda n: 0.5**n)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for update in range(5):
                step.backward(inf=update == inf_at)
                step.step()
                scheduler.step()
        heard = sum("lr_scheduler" in str(w.message) for w in caught)
        return heard, float(step.optimizer.param_groups[0]["lr"])

    first, later, fused = run(0), run(2), run(0, fused=True)
    return Measured(
        sides={
            name: {"warnings": heard, "rate, of what 4 updates give": rate / (0.1 * 0.5**4)}
            for name, (heard, rate) in {
                "first step skipped": first,
                "third step skipped": later,
                "first step skipped, fused": fused,
            }.items()
        },
        conclusion=f"warnings: {first[0]} if the first step is skipped, {later[0]} if the third, {fused[0]} with a fused optimizer; after 4 real updates the rate is that of 5 each time",
        holds={
            "one warning for the first": first[0] == 1,
            "none later": later[0] == 0,
            "none with a fused optimizer": fused[0] == 0,
            "the rate is that of five updates": all(
                abs(rate / 0.1 - 0.5**5) < 1e-9 for _, rate in (first, later, fused)
            ),
        },
    )


def _clipping(*, unscale: bool, max_norm: float = 1.0) -> Callable[[Trainee, Window], None]:
    def update(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.scaler.scale(t.loss(x, y)).backward()
        if unscale:
            t.scaler.unscale_(t.optimizer)
        clip_grad_norm_(t.model.parameters(), max_norm)
        t.scaler.step(t.optimizer)
        t.scaler.update()
        t.optimizer.zero_grad()

    return update


@experiment(
    "clip-scaled-freezes-sgd",
    claim="Clipping before unscale_ clips every step to max_norm / scale: SGD freezes, Adam's first step is nearly the same.",
    taught="Clipping scaled gradients at 1.0 has no effect, since they rarely exceed 65536.",
)
def clip_scaled_freezes_sgd() -> Measured:
    wrong, right = train(_clipping(unscale=False)), train(_clipping(unscale=True))
    adam = {
        scale: train(
            _clipping(unscale=False), updates=1, optimizer=Adam, lr=0.01, init_scale=scale
        ).steps[0]
        / train(
            _clipping(unscale=True), updates=1, optimizer=Adam, lr=0.01, init_scale=scale
        ).steps[0]
        for scale in (SCALE, 2.0**24)
    }
    used, shorter = wrong.steps[0] / 0.05, right.steps[0] / wrong.steps[0]
    return Measured(
        sides={
            "clipped before unscale_": {
                "norm the first SGD step used": used,
                "loss after 40 updates, SGD": wrong.losses[-1],
                "Adam's first step, of what it should be": adam[SCALE],
                "Adam's first step at a scale of 2^24": adam[2.0**24],
            },
            "clipped after unscale_": {
                "norm the first SGD step used": right.steps[0] / 0.05,
                "loss after 40 updates, SGD": right.losses[-1],
                "Adam's first step, of what it should be": 1.0,
                "Adam's first step at a scale of 2^24": 1.0,
            },
        },
        conclusion=(
            f"SGD's first step uses a norm of {used:.2e} = 1/65536 and is {shorter:,.0f} times too short: loss {wrong.losses[0]:.2f} to {wrong.losses[-1]:.2f} "
            f"instead of {right.losses[-1]:.2f}; Adam's first step is {adam[SCALE]:.2f} of what it should be, {adam[2.0**24]:.2f} at a scale of 2^24"
        ),
        holds={
            "the norm used is 1 / scale": abs(used * SCALE - 1) < 0.01,
            "SGD is frozen": wrong.losses[-1] > 0.99 * wrong.losses[0],
            "the right order learns": right.losses[-1] < 0.5 * right.losses[0],
            "Adam's first step is at least 80 percent": 0.8 < adam[SCALE] < 1.01,
        },
        curves={"clipped before unscale_": wrong.losses, "after": right.losses},
        axes=("update", "loss (SGD)"),
    )


@experiment(
    "clip-scaled-does-not-diverge",
    claim="Clipping before unscale_ does not diverge: it is training with max_norm / scale, a threshold that moves with the scale.",
    taught="Without unscale_ clipping does not work and training may diverge.",
)
def clip_scaled_does_not_diverge() -> Measured:
    ways = {
        "before unscale_, max_norm 1": _clipping(unscale=False),
        "after, max_norm 1/65536": _clipping(unscale=True, max_norm=1 / SCALE),
        "after, max_norm 1": _clipping(unscale=True),
    }
    scales = (65536.0, 32768.0, 16384.0)
    through = {
        name: [train(way, updates=1, lr=1.0, init_scale=scale).steps[0] for scale in scales]
        for name, way in ways.items()
    }
    adam = {name: train(way, updates=80, optimizer=Adam, lr=0.02) for name, way in ways.items()}
    wrong, same, _ = ways
    difference = off(adam[wrong].parameters, adam[same].parameters)
    return Measured(
        sides={
            name: {
                f"norm let through at a scale of {s:.0f}": n
                for s, n in zip(scales, through[name], strict=True)
            }
            | {"loss after 80 updates, Adam": adam[name].losses[-1]}
            for name in ways
        },
        conclusion=(
            "the norm let through is "
            + ", ".join(f"{n:.1e} at {s:.0f}" for s, n in zip(scales, through[wrong], strict=True))
            + f"; with Adam the loss goes from {adam[wrong].losses[0]:.1f} to {adam[wrong].losses[-1]:.2f}, as with max_norm = 1/65536 in the right place"
        ),
        holds={
            "the threshold is max_norm / scale, and moves with it": all(
                abs(n * s - 1) < 0.02 for s, n in zip(scales, through[wrong], strict=True)
            ),
            "the same weights as max_norm = 1/65536 in the right place": difference < 0.01,
            "nothing diverges": adam[wrong].losses[-1] < 0.2 * adam[wrong].losses[0],
        },
        curves={name: run.losses for name, run in adam.items()},
        axes=("update", "loss (Adam)"),
    )
