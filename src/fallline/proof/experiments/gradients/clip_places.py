"""Clipping in the wrong place: after the step, before the backward pass; and noise that is no privacy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, off, plain, train


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

    clipped, free = train(early), train(plain)
    difference = off(clipped.parameters, free.parameters)
    return Measured(
        sides={
            "clip before backward": {"loss after 40 updates": clipped.losses[-1]},
            "no clipping": {"loss after 40 updates": free.losses[-1]},
        },
        conclusion=f"the weights differ from no clipping by {difference:g}, and the largest of {len(returned)} returned norms is {max(returned):g}",
        holds={"no effect": difference == 0, "it returns 0 each time": max(returned) == 0},
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
    claim="Noise of 1e-3 and then a clip of the whole gradient hides nobody; clipping each sample and then adding noise does.",
    taught="Adding noise to gradients before clipping gives differential privacy.",
)
def noise_is_not_privacy() -> Measured:
    torch.manual_seed(0)
    others, one = torch.randn(20, 10), torch.randn(10)

    def noise_then_clip(samples: Tensor, noise: float = 1e-3) -> Tensor:
        mean: Tensor = samples.mean(0) + noise * torch.randn(10)
        return mean.div(mean.norm().clamp_min(1))

    def clip_then_noise(samples: Tensor, noise: float = 4.0) -> Tensor:
        clipped: Tensor = samples / samples.norm(dim=1, keepdim=True).clamp_min(1)
        return clipped.sum(0).add(torch.randn(10), alpha=noise)

    naive = _attack(lambda s: noise_then_clip(s), lambda s: noise_then_clip(s, 0), others, one)
    private = _attack(lambda s: clip_then_noise(s), lambda s: clip_then_noise(s, 0), others, one)
    return Measured(
        sides={
            "noise 1e-3, then clip": {"attacker right about one person, percent": 100 * naive},
            "clip each sample, then noise 4": {
                "attacker right about one person, percent": 100 * private
            },
        },
        conclusion=f"whether one person's sample is in the batch is guessed right {100 * naive:.0f}% of the time after noise and clip, {100 * private:.0f}% after clip and noise",
        holds={
            "noise then clip hides nothing": naive > 0.99,
            "clip then noise does": private < 0.65,
        },
    )


def _attack(
    release: Callable[[Tensor], Tensor],
    exact: Callable[[Tensor], Tensor],
    others: Tensor,
    one: Tensor,
) -> float:
    """How often the nearer of the two noiseless gradients tells whether `one` was there."""
    batches = (others, torch.cat([others, one[None]]))
    expected = [exact(batch) for batch in batches]
    right = 0
    for trial in range(1000):
        seen = release(batches[trial % 2])
        guess = int((seen - expected[1]).norm() < (seen - expected[0]).norm())
        right += guess == trial % 2
    return right / 1000
