"""Injected faults: memory that grows, data that is slow."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from watcher.matrix.architectures import Architecture
from watcher.matrix.fault import adam, fault


@fault("FL420", "FL401")
def losses_kept(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    history = []
    for _ in range(120):
        x, y = arch.batch(16)
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)


@fault("FL420", "FL401")
def losses_summed(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    total: Any = 0.0
    for _ in range(120):
        x, y = arch.batch(16)
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss


@fault("FL420", "FL401")
def outputs_kept(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    history = []
    for _ in range(120):
        x, y = arch.batch(16)
        output = model(x)
        loss = arch.loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(output)


@fault("FL520")
def data_slow(arch: Architecture) -> None:
    class Slow(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.x, self.y = arch.batch(480)

        def __len__(self) -> int:
            return 480

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            time.sleep(0.004)
            return self.x[index], self.y[index]

    model = arch.model()
    optimizer = adam(model)
    for x, y in torch.utils.data.DataLoader(Slow(), batch_size=8):
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
