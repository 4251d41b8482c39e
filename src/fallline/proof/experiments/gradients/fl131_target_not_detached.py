"""FL131: temporal-difference learning where the next state is random, with and without the target's gradient."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment

UPDATES = 1_500


@experiment(
    "FL131",
    claim="If the gradient also flows into the target, temporal-difference learning converges to wrong values where the next state is random.",
)
def target_not_detached() -> Measured:
    wrong, right = _learn(detached=False), _learn(detached=True)
    return Measured(
        sides={
            "wrong": {
                "value of the good state (1)": wrong[1],
                "value of the bad state (0)": wrong[2],
            },
            "right": {
                "value of the good state (1)": right[1],
                "value of the bad state (0)": right[2],
            },
        },
        conclusion=f"two states that are worth 1 and 0 get the values {wrong[1]:.2f} and {wrong[2]:.2f}; with a detached target {right[1]:.2f} and {right[2]:.2f}",
        holds={
            "the values are far off": wrong[1] < 0.85 and wrong[2] > 0.15,
            "with a detached target they are right": right[1] > 0.95 and right[2] < 0.05,
        },
    )


def _learn(*, detached: bool) -> list[float]:
    """A start that leads to a good or a bad state by chance; the good one ends with a reward of 1."""
    torch.manual_seed(0)
    values = torch.full((4,), 0.5)  # start, good, bad, over
    values[3] = 0.0
    values.requires_grad_()
    optimizer = torch.optim.SGD([values], lr=0.05)
    for _ in range(UPDATES):
        after = int(torch.randint(1, 3, ()))
        steps = ((0, 0.0, after), (after, float(after == 1), 3))
        losses = []
        for state, reward, following in steps:
            target = reward + (values[following] if following != 3 else values[3] * 0)
            losses.append((values[state] - (target.detach() if detached else target)) ** 2)
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    return [float(v) for v in values.detach()]
