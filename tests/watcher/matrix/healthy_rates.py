"""Healthy runs that look odd for their learning rates, norms or what they converge to."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watcher.matrix.architectures import (
    Attention,
    Recurrent,
    cnn,
    images,
    mlp,
    sequences,
    tokens,
    vectors,
)
from watcher.matrix.healthy_run import adam, classify, healthy, update


@healthy
def plain_mlp() -> None:
    model = mlp()
    optimizer = adam(model)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))


@healthy
def plain_cnn_with_sgd_momentum() -> None:
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        update(optimizer, classify(model, images(32)))


@healthy
def transformer_with_warm_up() -> None:
    model = Attention()
    optimizer = adam(model, 3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100)
    )
    for _ in range(150):
        update(optimizer, classify(model, tokens(32)), clip=model)
        scheduler.step()


@healthy
def long_warm_up_from_zero() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step / 20_000) ** 2)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))
        scheduler.step()


@healthy
def lstm_with_clipping() -> None:
    model = Recurrent()
    optimizer = adam(model, 1e-2)
    for _ in range(120):
        x, y = sequences(32)
        update(optimizer, F.mse_loss(model(x), y), clip=model)


@healthy
def tiny_gradients_falling_loss() -> None:
    model = mlp()
    optimizer = adam(model)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)) * 1e-5)


@healthy
def loss_times_ten_thousand() -> None:
    model = mlp()
    optimizer = adam(model)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)) * 1e4)


@healthy
def converged_for_long() -> None:
    x, y = torch.randn(64, 8), torch.randn(64, 1) * 0
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        update(optimizer, F.mse_loss(model(x), y))


@healthy
def resumed_when_converged() -> None:
    x = torch.randn(64, 8)
    model = nn.Linear(8, 1)
    with torch.no_grad():
        y = model(x) + 1e-4 * torch.randn(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(150):
        update(optimizer, F.mse_loss(model(x), y))


@healthy
def cosine_decay_to_zero() -> None:
    model = mlp()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))
        scheduler.step()


@healthy
def warm_restarts() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50)
    for _ in range(200):
        update(optimizer, classify(model, vectors(32)))
        scheduler.step()


@healthy
def fine_tuning_with_small_rate() -> None:
    model = mlp()
    optimizer = adam(model)
    for _ in range(200):
        update(optimizer, classify(model, vectors(32)))
    tuned = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=1e-5)
    for _ in range(150):
        update(optimizer, classify(tuned, vectors(32)))


@healthy
def overfitted_to_nothing() -> None:
    x, y = vectors(16)
    model = mlp()
    optimizer = adam(model, 1e-2)
    for _ in range(300):
        update(optimizer, F.cross_entropy(model(x), y))


@healthy
def second_order_optimizer() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x = torch.randn(64, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss

    for _ in range(30):
        optimizer.step(closure)


@healthy
def learning_rate_finder() -> None:
    """The rate rises until the loss turns up, and the search stops there."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for step in range(120):
        optimizer.param_groups[0]["lr"] = 1e-5 * math.exp(step * 0.09)
        update(optimizer, classify(model, vectors(64)))
