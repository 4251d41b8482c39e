"""Injected faults: gradients that explode, vanish, are clipped, gathered or cleared wrongly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import Architecture
from watcher.matrix.fault import adam, body, fault, outputs_of, sgd, train


@fault("FL120", "FL624", "FL620", "FL621", "FL622", at=60)
def learning_rate_jumps(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model)

    def jump(update: int) -> None:
        if update == 60:
            optimizer.param_groups[0]["lr"] = 1e4

    train(arch, model, optimizer, before=jump)


@fault("FL120", "FL624", "FL620", "FL621", "FL622", at=60, without="cnn")
def weights_blown_up(arch: Architecture) -> None:
    model = arch.model()

    def blow(update: int) -> None:
        if update == 60:
            with torch.no_grad():
                for layer in body(model):
                    for p in layer.parameters():
                        p.mul_(40)

    train(arch, model, sgd(model, 0.01), before=blow)


@fault("FL120", "FL620", "FL621", "FL622", "FL123")
def learning_rate_absurd(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, sgd(model, 1e6))


@fault("FL121", without="transformer")
def deep_sigmoids(arch: Architecture) -> None:
    layers: list[nn.Module] = [nn.Flatten(), nn.LazyLinear(16)]
    for _ in range(10):
        layers += [nn.Sigmoid(), nn.Linear(16, 16)]
    model = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(16, outputs_of(arch)))
    x, _ = arch.batch(4)
    model(x.float())
    nn.init.zeros_(model[-1].bias)
    optimizer = sgd(model, 1e-3)
    for _ in range(120):
        x, y = arch.batch(32)
        loss = arch.loss(model(x.float()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault("FL122", "FL126")
def layer_detached(arch: Architecture) -> None:
    model = arch.model()
    body(model)[-1].register_forward_pre_hook(lambda module, inputs: (inputs[0].detach(),))
    train(arch, model, adam(model))


class Extended(nn.Module):
    """The model, and one more layer on its outputs."""

    def __init__(
        self, main: nn.Module, outputs: int, use: Callable[[nn.Module, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.main = main
        self.extra = nn.Linear(outputs, outputs)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.extra, self.main(x))


@fault("FL122")
def layer_never_called(arch: Architecture) -> None:
    model = Extended(arch.model(), outputs_of(arch), lambda extra, output: output)
    train(arch, model, adam(model))


@fault("FL122")
def units_dead(arch: Architecture) -> None:
    model = Extended(
        arch.model(), outputs_of(arch), lambda extra, output: output + torch.relu(extra(output))
    )
    nn.init.constant_(model.extra.bias, -1e3)
    train(arch, model, adam(model))


@fault("FL123", "FL625")
def learning_rate_tiny(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, sgd(model, 1e-9), updates=150)


@fault("FL123", "FL625")
def learning_rate_zero(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, sgd(model, 0.0), updates=150)


@fault("FL123", "FL133", "FL120", "FL624", without="cnn")
def adam_learning_rate_huge(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, adam(model, 3.0), updates=150)


@fault("FL124")
def threshold_tiny(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, sgd(model), clip=0.005)


@fault("FL125")
def threshold_never_binds(arch: Architecture) -> None:
    model = arch.model()
    train(arch, model, sgd(model, 0.01), updates=220, clip=1e6)


@fault("FL101")
def clip_after_step(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for _ in range(30):
        x, y = arch.batch(32)
        optimizer.zero_grad()
        arch.loss(model(x), y).backward()
        optimizer.step()
        clip_grad_norm_(model.parameters(), 1.0)


@fault("FL102")
def clip_before_backward(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for _ in range(30):
        x, y = arch.batch(32)
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), 1.0)
        loss.backward()
        optimizer.step()


@fault("FL103")
def clip_every_micro_batch(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for micro in range(64):
        x, y = arch.batch(16)
        (arch.loss(model(x), y) / 4).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@fault("FL104")
def accumulation_not_divided(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model, 0.01)
    for micro in range(64):
        x, y = arch.batch(16)
        arch.loss(model(x), y).backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@fault("FL105")
def accumulation_wiped(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for micro in range(64):
        x, y = arch.batch(16)
        optimizer.zero_grad()
        (arch.loss(model(x), y) / 4).backward()
        if micro % 4 == 3:
            optimizer.step()


@fault("FL106")
def gradients_never_cleared(arch: Architecture) -> None:
    model = arch.model()
    optimizer = sgd(model, 1e-3)
    for _ in range(30):
        x, y = arch.batch(32)
        arch.loss(model(x), y).backward()
        optimizer.step()


@fault("FL110")
def gradients_divided_repeatedly(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    for micro in range(64):
        x, y = arch.batch(16)
        arch.loss(model(x), y).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= 4
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@fault("FL108")
def scheduler_every_micro_batch(arch: Architecture) -> None:
    model = arch.model()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 64)
    for micro in range(64):
        x, y = arch.batch(16)
        (arch.loss(model(x), y) / 4).backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


@fault("FL126")
def other_parameters_optimized(arch: Architecture) -> None:
    model = arch.model()
    copy = arch.model()
    optimizer = adam(copy)
    for _ in range(60):
        x, y = arch.batch(32)
        loss = arch.loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fault("FL126")
def head_not_optimized(arch: Architecture) -> None:
    model = arch.model()
    head = set(body(model)[-1].parameters())
    optimizer = torch.optim.Adam([p for p in model.parameters() if p not in head], lr=3e-3)
    train(arch, model, optimizer, updates=60)
