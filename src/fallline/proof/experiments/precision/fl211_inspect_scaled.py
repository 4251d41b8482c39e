"""FL211: the norm that is logged before and after unscale_, while the scale grows."""

from __future__ import annotations

from itertools import pairwise

from torch.nn.utils import get_total_norm

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, train
from fallline.proof.experiments.precision._scaled import scaled_backward

GROWTH_INTERVAL = 10


@experiment(
    "FL211",
    claim="Norms read before unscale_ are 65536 times too large and jump by two whenever the scale does.",
)
def inspect_scaled() -> Measured:
    wrong: list[float] = []
    right: list[float] = []

    def update(t: Trainee, window: Window) -> None:
        scaled_backward(t, window)
        wrong.append(_norm(t))
        t.scaler.unscale_(t.optimizer)
        right.append(_norm(t))
        t.scaler.step(t.optimizer)
        t.scaler.update()
        t.optimizer.zero_grad()

    train(update, growth_interval=GROWTH_INTERVAL)
    factors = [w / r for w, r in zip(wrong, right, strict=True)]
    jumps = [b / a for a, b in pairwise(factors)]
    at = [i for i, jump in enumerate(jumps, 1) if jump > 1.5]
    return Measured(
        sides={
            "wrong": {"first norm": wrong[0], "last norm": wrong[-1]},
            "right": {"first norm": right[0], "last norm": right[-1]},
        },
        conclusion=f"read before unscale_ the first norm is {wrong[0]:,.0f} instead of {right[0]:.1f} ({factors[0]:,.0f} times), and it jumps by {max(jumps):.1f} at updates {', '.join(map(str, at))}, where the scale grew",
        holds={
            "it is 65536 times too large": abs(factors[0] / 65536 - 1) < 1e-3,
            "it jumps by two where the scale grows": at == [10, 20, 30]
            and all(abs(jumps[i - 1] - 2) < 1e-3 for i in at),
        },
        curves={
            "wrong / 65536": [w / 65536 for w in wrong],
            "right": right,
        },
        axes=("update", "logged norm"),
    )


def _norm(t: Trainee) -> float:
    return float(get_total_norm([p.grad for p in t.model.parameters() if p.grad is not None]))
