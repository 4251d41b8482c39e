"""FL019: adapters that the optimizer does not know."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

UPDATES = 100


class Adapted(nn.Module):
    """A frozen layer with a low-rank addition."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, 4, bias=False)
        self.lora_B = nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return out


@experiment(
    "FL019",
    claim="An optimizer that was built before the adapters moves none of them, and the loss stays where it was.",
)
def adapter_trains_nothing() -> Measured:
    wrong, wrong_losses = _trained(before=True)
    right, right_losses = _trained(before=False)
    moved = "movement of the adapters"
    return Measured(
        sides={
            "wrong": {moved: wrong, "loss": wrong_losses[-1]},
            "right": {moved: right, "loss": right_losses[-1]},
        },
        conclusion=f"after {UPDATES} updates the adapters moved by {wrong:g} (loss {wrong_losses[-1]:.2f}), or by {right:.2f} (loss {right_losses[-1]:.2f}) when the optimizer knows them",
        holds={
            "unknown, they stay": wrong == 0,
            "known, they move": right > 0,
            "and the loss falls": right_losses[-1] < 0.8 * wrong_losses[-1],
        },
        curves={"wrong": wrong_losses, "right": right_losses},
        axes=("update", "loss"),
    )


def _trained(*, before: bool) -> tuple[float, list[float]]:
    torch.manual_seed(0)
    base = nn.Linear(16, 16)
    wanted = nn.Linear(16, 16)
    early = torch.optim.AdamW(base.parameters(), lr=1e-2)
    model = Adapted(base)
    late = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    optimizer = early if before else late
    start = torch.cat(
        [p.detach().flatten() for p in (*model.lora_A.parameters(), *model.lora_B.parameters())]
    )
    losses = []
    for _ in range(UPDATES):
        x = torch.randn(64, 16)
        loss = (model(x) - wanted(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    end = torch.cat(
        [p.detach().flatten() for p in (*model.lora_A.parameters(), *model.lora_B.parameters())]
    )
    return float((end - start).norm()), losses
