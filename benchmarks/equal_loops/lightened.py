"""Lightning, automatic and manual optimization, with a switch for what is wrong with it."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from equal_loops.plain import net, pictures
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

K = 4


class Module(pl.LightningModule):
    """Lightning divides the loss by accumulate_grad_batches itself."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.net = net()
        self.automatic_optimization = "manual" not in fault

    def training_step(self, batch: Any, index: int) -> Tensor | None:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        if self.automatic_optimization:
            return loss / K if self.fault == "divided twice" else loss
        optimizer: Any = self.optimizers()
        self.manual_backward(loss if self.fault == "manual undivided" else loss / K)
        if self.fault == "manual wiped" and index % K == 1:
            optimizer.zero_grad()
        if self.fault == "manual clip each":
            self.clip_gradients(optimizer, 0.05, "norm")
        if (index + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        return None

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("val_loss", loss / len(x) if self.fault == "evaluation divided twice" else loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.fault == "divided before the step":
            for p in self.parameters():
                if p.grad is not None:
                    p.grad /= K

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(fault: str = "") -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    automatic = "manual" not in fault
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=K if automatic else 1,
        gradient_clip_val=0.05 if fault == "right clip" else None,
    )  # fmt: skip
    count = 44 if fault in ("remainder", "right flush") else 32
    loader = DataLoader(pictures(count), batch_size=4, shuffle=True)
    trainer.fit(Module(fault), loader, DataLoader(pictures(24), batch_size=8))


LOOPS = {"train": train}

if __name__ == "__main__":
    train(" ".join(sys.argv[1:]))
