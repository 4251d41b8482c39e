"""Losses from logits against losses written by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment


@experiment(
    "cross-entropy-is-stable",
    claim="cross_entropy of logits is exact for logits 10 to 20,000 apart; the log of a softmax is infinite from about 104 on.",
)
def cross_entropy_is_stable() -> Measured:
    def from_logits(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[None], torch.tensor([1]))

    def log_of_softmax(logits: Tensor) -> Tensor:
        return -logits.softmax(0)[1].log()

    def by_hand(logits: Tensor) -> Tensor:
        return -(logits.exp() / logits.exp().sum())[1].log()

    gaps = (10.0, 50.0, 80.0, 103.0, 105.0, 20_000.0)
    found = {
        name: [_loss_and_slope(f, [gap / 2, -gap / 2]) for gap in gaps]
        for name, f in {
            "cross_entropy": from_logits,
            "log(softmax)": log_of_softmax,
            "exp / sum of exp": by_hand,
        }.items()
    }
    return Measured(
        sides={
            name: {
                f"loss, logits {gap:g} apart": f"{loss:g}"
                for gap, (loss, _) in zip(gaps, values, strict=True)
            }
            for name, values in found.items()
        },
        conclusion=(
            f"logits 20,000 apart: cross_entropy gives {found['cross_entropy'][-1][0]:g}, log(softmax) {found['log(softmax)'][-1][0]:g}, "
            f"exp / sum {found['exp / sum of exp'][-1][0]:g}"
        ),
        holds={
            "cross_entropy is exact, with a slope of -1": all(
                abs(loss / gap - 1) < 1e-3 and abs(slope + 1) < 1e-3
                for gap, (loss, slope) in zip(gaps, found["cross_entropy"], strict=True)
            ),
            "log(softmax) is inf at 105": found["log(softmax)"][4][0] == float("inf"),
            "and fine at 80, and finite at 103": abs(found["log(softmax)"][2][0] - 80) < 0.1
            and found["log(softmax)"][3][0] < float("inf"),
            "exp / sum is not finite at 20,000": not abs(found["exp / sum of exp"][-1][0])
            < float("inf"),
        },
    )


@experiment(
    "bce-with-logits-is-stable",
    claim="binary_cross_entropy_with_logits keeps loss and slope for confident wrong answers; sigmoid and log lose both.",
)
def bce_with_logits_is_stable() -> Measured:
    def stable(z: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, torch.ones(1))

    def by_hand(z: Tensor) -> Tensor:
        return -(z.sigmoid() + 1e-8).log().sum()

    def clamped(z: Tensor) -> Tensor:
        return F.binary_cross_entropy(z.sigmoid(), torch.ones(1))

    forms = {
        "with logits": stable,
        "log(sigmoid + 1e-8)": by_hand,
        "binary_cross_entropy(sigmoid)": clamped,
    }
    found = {
        name: {z: _loss_and_slope(f, [z]) for z in (-10.0, -30.0, -120.0)}
        for name, f in forms.items()
    }
    return Measured(
        sides={
            name: {
                key: value
                for z, (loss, slope) in values.items()
                for key, value in ((f"loss at {z:g}", loss), (f"slope at {z:g}", slope))
            }
            for name, values in found.items()
        },
        conclusion=(
            f"a logit of -120 for a true label: loss {found['with logits'][-120][0]:.0f} and slope {found['with logits'][-120][1]:.0f} with logits, "
            f"{found['log(sigmoid + 1e-8)'][-120][0]:.0f} and {abs(found['log(sigmoid + 1e-8)'][-120][1]):.0f} by hand"
        ),
        holds={
            "with logits: loss 120, slope -1": found["with logits"][-120] == (120.0, -1.0),
            "by hand: no slope left": abs(found["log(sigmoid + 1e-8)"][-120][1]) < 1e-6,
            "binary_cross_entropy cuts at 100 and loses the slope too": found[
                "binary_cross_entropy(sigmoid)"
            ][-120][0]
            == 100
            and abs(found["binary_cross_entropy(sigmoid)"][-120][1]) < 1e-6,
        },
    )


def _loss_and_slope(f: Callable[[Tensor], Tensor], at: list[float]) -> tuple[float, float]:
    """The loss, and its slope in the last logit."""
    logits = torch.tensor(at, requires_grad=True)
    loss = f(logits)
    loss.backward()
    assert logits.grad is not None
    return loss.item(), logits.grad[-1].item()
