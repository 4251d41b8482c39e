"""The loss that is printed while training is not the loss that validation would print for the same data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

PASSES = 20


@experiment(
    "training-loss-is-another-measure",
    claim="On the same data, the loss averaged over an epoch of training with dropout lies above the loss in eval mode at its end.",
    taught="A validation loss below the training loss is a bug.",
)
def training_loss_is_another_measure() -> Measured:
    torch.manual_seed(0)
    x = torch.randn(512, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    printed, in_train, in_eval = [], [], []
    for _ in range(8):
        model.train()
        total = 0.0
        for i in range(0, 512, 32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
            loss.backward()
            optimizer.step()
            total += loss.detach().item() / 16
        with torch.no_grad():
            printed.append(total)
            # of many draws of the dropout: one can be lucky
            passes = [F.cross_entropy(model(x), y).item() for _ in range(PASSES)]
            in_train.append(sum(passes) / PASSES)
            model.eval()
            in_eval.append(F.cross_entropy(model(x), y).item())
    return Measured(
        sides={
            "averaged while training": {"epoch 1": printed[0], "epoch 8": printed[-1]},
            "after the epoch, train mode": {"epoch 1": in_train[0], "epoch 8": in_train[-1]},
            "after the epoch, eval mode": {"epoch 1": in_eval[0], "epoch 8": in_eval[-1]},
        },
        conclusion=f"the same 512 samples in the first epoch: {printed[0]:.2f} averaged while training, {in_train[0]:.2f} after it with dropout, {in_eval[0]:.2f} after it in eval mode; in the eighth {printed[-1]:.2f}, {in_train[-1]:.2f} and {in_eval[-1]:.2f}",
        holds={
            "the average lags in the first epoch": printed[0] > in_train[0],
            "dropout adds to the loss in every epoch": all(
                t > e for t, e in zip(in_train, in_eval, strict=True)
            ),
            "eval mode lies below what was printed, in every epoch": all(
                p > e for p, e in zip(printed, in_eval, strict=True)
            ),
        },
        curves={"averaged while training": printed, "eval mode": in_eval},
        axes=("epoch", "loss"),
    )
