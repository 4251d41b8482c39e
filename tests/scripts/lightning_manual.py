"""Lightning, manual optimization: accumulation by hand, cleared too often."""
import lightning as L
import torch
from torch import nn


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        x, y = batch
        opt.zero_grad()  # FL105
        loss = nn.functional.cross_entropy(self.net(x), y) / 4
        self.manual_backward(loss)
        if (batch_idx + 1) % 4 == 0:
            opt.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)
