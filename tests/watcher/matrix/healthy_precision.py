"""Healthy runs that look odd for their number formats and for gathered gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import mlp, vectors
from watcher.matrix.healthy_run import adam, classify, healthy, update


@healthy
def scaler_with_growth_probing() -> None:
    model = mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=20)
    for _ in range(200):
        loss = classify(model, vectors(32))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@healthy
def scaler_with_small_scale() -> None:
    model = mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=0.01)
    for _ in range(100):
        loss = classify(model, vectors(32))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@healthy
def bfloat16_autocast() -> None:
    model = mlp()
    optimizer = adam(model)
    for _ in range(120):
        x, y = vectors(32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        update(optimizer, loss)


@healthy
def accumulation_done_right() -> None:
    model = mlp()
    optimizer = adam(model)
    for micro in range(320):
        (classify(model, vectors(16)) / 4).backward()
        if micro % 4 == 3:
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
