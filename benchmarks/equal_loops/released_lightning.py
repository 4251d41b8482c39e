"""A LightningModule and nothing else: what Lightning's release makes of an accumulation.

pip install --no-deps --target /tmp/old pytorch-lightning==2.0.9 lightning-fabric==2.0.9 "setuptools<70"
PYTHONPATH=/tmp/old fallline equal benchmarks/equal_loops/released_lightning.py [validation]

Lightning 2.0 loses micro-batches in two ways, both repaired in 2.1: a `training_step` without `batch_idx` clears the gradients before every
micro-batch (#18619), and a validation in the middle of an accumulation clears what was accumulated (#18710).
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

try:  # an old release on the path
    import pytorch_lightning as pl
except ImportError:
    import lightning.pytorch as pl


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Classifier):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:  # type: ignore[override]
        return super().training_step(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", super().training_step(batch))


def main(validation: bool) -> None:
    pl.seed_everything(0)
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, val_check_interval=2 if validation else None,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    loader = DataLoader(data, batch_size=4, shuffle=True)
    if validation:
        trainer.fit(Validated(), loader, DataLoader(data, batch_size=16))
    else:
        trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main("validation" in sys.argv)
