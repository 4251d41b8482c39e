"""Injected faults: a loss that jumps or stays, values that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from watcher.matrix.architectures import Architecture
from watcher.matrix.fault import adam, body, fault, sgd, train


@fault("FL624", "FL120", at=90)
def batch_broken(arch: Architecture) -> None:
    model = arch.model()
    train(
        arch,
        model,
        adam(model),
        updates=150,
        weight=lambda update: 300.0 if update == 90 else 1.0,
        clip=1.0,
    )


@fault("FL625", "FL123", "FL122")
def updates_undone(arch: Architecture) -> None:
    """The weights are put back after each update."""
    model = arch.model()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = sgd(model)
    x, y = arch.batch(64)
    for _ in range(120):
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.load_state_dict(state)


@fault("FL623", at=40, without="transformer")
def input_nan(arch: Architecture) -> None:
    model = arch.model()

    def batch(update: int) -> tuple[Tensor, Tensor]:
        x, y = arch.batch(32)
        if update == 40:
            x[3] = float("nan")
        return x, y

    train(arch, model, adam(model), updates=60, batch=batch)


@fault("FL620", at=40)
def loss_log_of_zero(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for update in range(60):
        x, y = arch.batch(32)
        output = model(x)
        loss = arch.loss(output, y)
        if update == 40:
            loss = loss - torch.log(torch.relu(output.sum() * 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault("FL621", at=40)
def gradient_sqrt_at_zero(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for update in range(60):
        x, y = arch.batch(32)
        output = model(x)
        loss = arch.loss(output, y)
        if update >= 40:
            loss = loss + torch.sqrt((output * 0).square()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault("FL622", "FL620", at=40)
def parameter_nan(arch: Architecture) -> None:
    model = arch.model()

    def spoil(update: int) -> None:
        if update == 40:
            with torch.no_grad():
                next(iter(body(model)[0].parameters())).view(-1)[0] = float("nan")

    train(arch, model, adam(model), updates=60, before=spoil)
