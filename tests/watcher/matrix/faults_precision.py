"""Injected faults: the loss scale."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import Architecture
from watcher.matrix.fault import adam, fault, sgd


@fault("FL201")
def clip_scaled(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(30):
        x, y = arch.batch(32)
        optimizer.zero_grad()
        scaler.scale(arch.loss(model(x), y)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@fault("FL203")
def scaler_bypassed(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(30):
        x, y = arch.batch(32)
        optimizer.zero_grad()
        scaler.scale(arch.loss(model(x), y)).backward()
        optimizer.step()


@fault("FL220")
def overflow_again_and_again(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for update in range(100):
        x, y = arch.batch(32)
        loss = arch.loss(model(x), y) * (3e37 if update % 4 == 3 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)


@fault("FL221", "FL620", "FL621")
def scale_collapses(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(60):
        x, y = arch.batch(32)
        loss = arch.loss(model(x), y) * 1e38
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
