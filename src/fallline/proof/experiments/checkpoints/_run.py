"""A small training run with everything that has state, and a way to interrupt it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fallline.proof.experiments._training import flat

__all__ = ["HALF", "Run", "interrupted"]

HALF = 40  # the run is interrupted after so many updates, and ends after twice as many


class Run:
    """Weights, Adam, a schedule, a scaler, a count of updates, dropout and random batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(256, 8)
        self.y = self.x @ torch.randn(8, 1) + 0.1 * torch.randn(256, 1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 0.95**n)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=20)
        self.done = 0
        self.losses: list[float] = []  # on all data, after each update

    def updates(self, count: int) -> Tensor:
        """Make so many updates; the weights after them."""
        for _ in range(count):
            rows = torch.randint(256, (32,))
            loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.done += 1
            self.losses.append(self.loss())
        return flat(self.model.parameters())

    @torch.no_grad()
    def loss(self) -> float:
        self.model.eval()
        loss = nn.functional.mse_loss(self.model(self.x), self.y).item()
        self.model.train()
        return loss

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "step": self.done,
                "RNG": torch.get_rng_state(),
            }
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Whatever is missing stays as a new program makes it."""
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if name in state:
                getattr(self, name).load_state_dict(copy.deepcopy(state[name]))
        self.done = state.get("step", 0)
        if "RNG" in state:
            torch.set_rng_state(state["RNG"])


def interrupted() -> tuple[dict[str, Any], Tensor]:
    """The state of a run at half time, and the weights with which it ends if nobody interrupts it."""
    whole = Run()
    whole.updates(HALF)
    saved = whole.state()
    return saved, whole.updates(HALF)
