"""Two shapes that fit by accident."""

from __future__ import annotations

import warnings

import torch
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment


@experiment(
    "loss-over-broadcast-shapes",
    claim="mse_loss of outputs (N, 1) and targets (N) compares every output with every target: perfect predictions have a large loss, and the best that can be learned is the mean. view(-1, n) with a wrong n makes other samples.",
)
def loss_over_broadcast_shapes() -> Measured:
    torch.manual_seed(0)
    targets = torch.randn(64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrong = F.mse_loss(targets[:, None], targets).item()
        # what training would end at: the minimum over all outputs
        outputs = torch.zeros(64, 1, requires_grad=True)
        optimizer = torch.optim.SGD([outputs], lr=10.0)
        for _ in range(100):
            optimizer.zero_grad()
            F.mse_loss(outputs, targets).backward()
            optimizer.step()
    right = F.mse_loss(targets[:, None].squeeze(1), targets).item()
    learned = outputs.detach()
    off_mean = (learned - targets.mean()).abs().max().item()
    images = torch.zeros(4, 2, 3)
    rows, kept = images.view(-1, 4).shape[0], images.flatten(1).shape[0]
    warned = sum("broadcast" in str(w.message) for w in caught)
    return Measured(
        sides={
            "outputs (64, 1), targets (64)": {
                "loss of perfect predictions": wrong,
                "spread of what is learned": learned.std().item(),
            },
            "outputs (64), targets (64)": {"loss of perfect predictions": right},
            "4 samples of 2 x 3": {"rows after view(-1, 4)": rows, "rows after flatten(1)": kept},
        },
        conclusion=f"perfect predictions of shape (64, 1) against targets of shape (64) have a loss of {wrong:.2f} instead of {right:g}; trained so, all outputs end at the mean of the targets (off by {off_mean:.0e}); torch only warns. view(-1, 4) makes {rows} rows of 4 samples of 2 x 3, flatten(1) {kept}",
        holds={
            "perfect predictions are punished": wrong > 1 and right == 0,
            "only the mean is learned": off_mean < 1e-3,
            "torch warns": warned > 0,
            "a wrong view makes other samples": (rows, kept) == (6, 4),
        },
    )
