"""FL118: the same loop with and without optimizer.step()."""

from __future__ import annotations

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, plain, train


@experiment(
    "FL118",
    claim="A loop that only calls backward does not learn: the loss is computed, differentiated and forgotten.",
)
def gradient_never_used() -> Measured:
    norms: list[float] = []

    def backward_only(t: Trainee, window: Window) -> None:
        for x, y in window:
            t.loss(x, y).backward()
        norms.append(sum(float(p.grad.norm()) for p in t.model.parameters() if p.grad is not None))
        t.optimizer.zero_grad()

    wrong, right = train(backward_only), train(plain)
    return Measured(
        sides={
            "wrong": {
                "distance moved": sum(wrong.steps),
                "loss after 40 updates": wrong.losses[-1],
            },
            "right": {
                "distance moved": sum(right.steps),
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"without a step {len(norms)} gradients were computed and the loss stays at {wrong.losses[-1]:.2f}; with it the loss falls to {right.losses[-1]:.2f}",
        holds={
            "there were gradients": min(norms) > 0,
            "nothing moved": sum(wrong.steps) == 0,
            "the loss is what it was": wrong.losses[-1] == wrong.losses[0],
            "with a step it falls": right.losses[-1] < 0.1 * right.losses[0],
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )
