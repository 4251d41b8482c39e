"""Clipping in the wrong place: after the step, before the backward pass; and noise that is no privacy."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, clipped, off, plain, train

BATCHES, TRIALS = 10, 200  # of an attack on one person's privacy


@experiment(
    "clip-after-step",
    claim="Clipping after the step does nothing if zero_grad follows; where gradients are kept, it changes later updates.",
    taught="Clipping after the step is merely useless.",
)
def clip_after_step() -> Measured:
    zeroed = off(train(_clip_after(zero=True)).parameters, train(plain).parameters)
    kept = off(train(_clip_after(zero=False)).parameters, train(_keeping).parameters)
    return Measured(
        sides={
            "zero_grad follows": {"weights differ from no clipping by": zeroed},
            "gradients kept": {"weights differ from no clipping by": kept},
        },
        conclusion=f"against no clipping the weights differ by {zeroed:g} with zero_grad, by {100 * kept:.0f}% where gradients are kept",
        holds={"nothing with zero_grad": zeroed == 0, "something without": kept > 0.01},
    )


@experiment(
    "clip-before-backward",
    claim="Clipping between zero_grad and backward does nothing, and says so only by returning 0.",
)
def clip_before_backward() -> Measured:
    returned: list[float] = []

    def early(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.optimizer.zero_grad()
        returned.append(float(clip_grad_norm_(t.model.parameters(), 0.1)))
        t.loss(x, y).backward()
        t.optimizer.step()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        misplaced = train(early)
    free, placed = train(plain), train(clipped(0.1))
    difference = off(misplaced.parameters, free.parameters)
    effect = off(placed.parameters, free.parameters)
    return Measured(
        sides={
            "clip before backward": {"loss after 40 updates": misplaced.losses[-1]},
            "no clipping": {"loss after 40 updates": free.losses[-1]},
            "clip after backward": {"loss after 40 updates": placed.losses[-1]},
        },
        conclusion=f"the weights differ from no clipping by {difference:g}, with a clip after backward by {100 * effect:.0f}%; the largest of {len(returned)} returned norms is {max(returned):g}, with {len(heard)} warnings",
        holds={
            "no effect": difference == 0,
            "the same clip in its place has one": effect > 0.1,
            "it returns 0 each time": max(returned) == 0,
            "and nothing warns": not heard,
        },
    )


def _clip_after(*, zero: bool) -> Callable[[Trainee, Window], None]:
    def update(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.loss(x, y).backward()
        t.optimizer.step()
        clip_grad_norm_(t.model.parameters(), 0.1)
        if zero:
            t.optimizer.zero_grad()

    return update


def _keeping(t: Trainee, window: Window) -> None:
    """No clipping, and gradients are never set to zero."""
    ((x, y),) = window
    t.loss(x, y).backward()
    t.optimizer.step()


@experiment(
    "noise-is-not-privacy",
    claim="Noise and then a clip of the whole gradient does not hide a sample with a large gradient; the same noise after clipping each sample does.",
    taught="Adding noise to gradients before clipping gives differential privacy.",
)
def noise_is_not_privacy() -> Measured:
    torch.manual_seed(0)

    def noise_then_clip(samples: Tensor, noise: float) -> Tensor:
        total: Tensor = samples.sum(0).add(torch.randn(10), alpha=noise)
        return total.div(total.norm().clamp_min(1))

    def clip_then_noise(samples: Tensor, noise: float) -> Tensor:
        clipped: Tensor = samples / samples.norm(dim=1, keepdim=True).clamp_min(1)
        return clipped.sum(0).add(torch.randn(10), alpha=noise)

    naive = _attacks(noise_then_clip, 100)
    private = _attacks(clip_then_noise, 100)
    ordinary = _attacks(clip_then_noise, 1)
    little = _attacks(noise_then_clip, 1, noise=1e-3)
    right = "attacker right about one person, percent"
    return Measured(
        sides={
            "noise 4, then clip": {f"{right}, gradient of 300": 100 * naive},
            "clip each sample, then noise 4": {
                f"{right}, gradient of 300": 100 * private,
                f"{right}, gradient of 3": 100 * ordinary,
            },
            "noise 1e-3, then clip": {f"{right}, gradient of 3": 100 * little},
        },
        conclusion=f"whether one person's large gradient is in the batch is guessed right {100 * naive:.0f}% of the time after noise and clip, {100 * private:.0f}% after clip and the same noise; with noise of 1e-3 before the clip an ordinary one {100 * little:.0f}%",
        holds={
            "noise then clip does not hide a large gradient": naive > 0.9,
            "nor does little noise hide an ordinary one": little > 0.99,
            "clip then noise hides both": max(private, ordinary) < 0.65,
        },
    )


def _attacks(
    release: Callable[[Tensor, float], Tensor], factor: float, noise: float = 4.0
) -> float:
    """How often the attack is right about one person of several batches: how well one hides depends on the others."""
    rates = [
        _attack(release, torch.randn(20, 10), factor * torch.randn(10), noise)
        for _ in range(BATCHES)
    ]
    return sum(rates) / BATCHES


def _attack(
    release: Callable[[Tensor, float], Tensor], others: Tensor, one: Tensor, noise: float
) -> float:
    """How often the nearer of the two noiseless gradients tells whether `one` was there."""
    batches = (others, torch.cat([others, one[None]]))
    expected = [release(batch, 0.0) for batch in batches]
    right = 0
    for trial in range(TRIALS):
        seen = release(batches[trial % 2], noise)
        guess = int((seen - expected[1]).norm() < (seen - expected[0]).norm())
        right += guess == trial % 2
    return right / TRIALS
