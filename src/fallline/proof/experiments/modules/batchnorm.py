"""Batch norm: what it normalises, when, and what padding does to it."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "batchnorm-train-and-eval",
    claim="Batch norm gives mean 0 and spread 1 only in training; after one batch eval() is far from it, and one sample cannot be trained on.",
    taught="Batch norm normalises to mean 0, standard deviation 1.",
)
def batchnorm_train_and_eval() -> Measured:
    torch.manual_seed(0)
    x = 3 * torch.randn(256, 8) + 2
    norm = nn.BatchNorm1d(8)
    means, spreads = [], []
    trained = norm(x).detach()
    for _ in range(60):
        norm.eval()
        with torch.no_grad():
            out = norm(x)
        means.append(float(out.mean()))
        spreads.append(float(out.std()))
        norm.train()
        norm(x)
    single = error_of(lambda: norm(x[:1]))
    return Measured(
        sides={
            "train": {"mean": float(trained.mean()), "spread": float(trained.std())},
            "eval after 1 batch": {"mean": means[0], "spread": spreads[0]},
            "eval after 60 batches": {"mean": means[-1], "spread": spreads[-1]},
        },
        conclusion=f"spread 1.00 in training, {spreads[0]:.1f} in eval after one batch, {spreads[-1]:.2f} after 60; a batch of one raises {single}",
        holds={
            "training normalises": abs(float(trained.mean())) < 1e-5
            and abs(float(trained.std()) - 1) < 0.01,
            "eval after one batch does not": means[0] > 0.5 and spreads[0] > 1.5,
            "eval after sixty does": abs(means[-1]) < 0.05 and abs(spreads[-1] - 1) < 0.05,
            "a batch of one raises": single == "ValueError",
        },
        curves={"mean in eval": means, "spread in eval": spreads},
        axes=("batches seen", ""),
    )


@experiment(
    "batchnorm-and-padding",
    claim="Half of a batch being zero padding halves the mean batch norm subtracts; layer norm does not see the padding.",
)
def batchnorm_and_padding() -> Measured:
    torch.manual_seed(0)
    x = torch.randn(64, 8, 40) + 1  # batch, features, time
    padded = x.clone()
    padded[:, :, 20:] = 0
    batch, layer = nn.BatchNorm1d(8, momentum=1.0), nn.LayerNorm(8)
    full_out = batch(x).detach()
    full = float(batch.running_mean.mean())  # type: ignore[union-attr]
    padded_out = batch(padded).detach()
    half = float(batch.running_mean.mean())  # type: ignore[union-attr]
    # The same tokens, with and without padding behind them.
    moved = float((full_out - padded_out)[:, :, :20].abs().mean())
    unmoved = float((layer(x.mT) - layer(padded.mT)).detach()[:, :20].abs().max())
    return Measured(
        sides={
            "no padding": {
                "mean that batch norm subtracts": full,
                "real tokens moved by, batch norm": 0.0,
                "real tokens moved by, layer norm": 0.0,
            },
            "half padding": {
                "mean that batch norm subtracts": half,
                "real tokens moved by, batch norm": moved,
                "real tokens moved by, layer norm": unmoved,
            },
        },
        conclusion=f"50% zero padding moves batch norm's mean from {full:.2f} to {half:.2f} and the real tokens by {moved:.2f}; layer norm's by {unmoved:g}",
        holds={
            "the mean is halved": abs(half / full - 0.5) < 0.03,
            "real tokens change under batch norm": moved > 0.1,
            "and not under layer norm": unmoved == 0,
        },
    )


@experiment(
    "frozen-batchnorm-still-moves",
    claim="Batch norm with requires_grad=False goes on moving its running statistics in training mode; only eval() stops it, and train() on the whole model undoes that.",
    taught="requires_grad=False freezes a layer.",
)
def frozen_batchnorm_still_moves() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))
    norm = model[0]
    norm.requires_grad_(False)

    def moved() -> float:
        before = norm.get_buffer("running_mean").clone()
        model(torch.randn(64, 8) + 2)
        return float((norm.get_buffer("running_mean") - before).abs().max())

    frozen = moved()
    norm.eval()
    stopped = moved()
    model.train()
    again = moved()
    return Measured(
        sides={
            "requires_grad=False": {"running mean moved by": frozen},
            "and eval()": {"running mean moved by": stopped},
            "then model.train()": {"running mean moved by": again},
        },
        conclusion=f"one batch moves the running mean of a frozen layer by {frozen:.2f}, in eval mode by {stopped:g}, and after model.train() by {again:.2f} again",
        holds={
            "freezing does not stop it": frozen > 0.1,
            "eval() does": stopped == 0,
            "train() on the model undoes it": again > 0.1,
        },
    )
