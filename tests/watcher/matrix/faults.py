"""Injected faults: one mistake each, in an otherwise healthy loop, for every architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import Architecture

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """`codes`: any of these is a right answer; `at`: the update that makes the mistake."""

    name: str
    codes: frozenset[str]
    train: Callable[[Architecture], None]
    at: int = 0
    without: frozenset[str] = frozenset()  # architectures in which it is no fault


FAULTS: dict[str, Fault] = {}


def fault(
    *codes: str, at: int = 0, without: str = ""
) -> Callable[[Callable[[Architecture], None]], Callable[[Architecture], None]]:
    def register(train: Callable[[Architecture], None]) -> Callable[[Architecture], None]:
        name = train.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, frozenset(codes), train, at, frozenset(without.split()))
        return train

    return register


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def outputs_of(arch: Architecture) -> int:
    return 1 if arch.loss is F.mse_loss else 4


def body(model: nn.Module) -> list[nn.Module]:
    """The layers with matrices, from the input on."""
    return [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.LSTM)]


def train(
    arch: Architecture,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    updates: int = 120,
    *,
    before: Callable[[int], Any] | None = None,
    batch: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    weight: Callable[[int], float] | None = None,
    clip: float | None = None,
) -> None:
    """The healthy loop, with places where one thing can go wrong."""
    for update in range(updates):
        if before is not None:
            before(update)
        x, y = batch(update) if batch is not None else arch.batch(32)
        loss = arch.loss(model(x), y)
        if weight is not None:
            loss = loss * weight(update)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


# -- gradients ---------------------------------------------------------------------------------------------------


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


@fault("FL123", "FL120", "FL624", without="cnn")
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


# -- precision ---------------------------------------------------------------------------------------------------


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


# -- memory and speed --------------------------------------------------------------------------------------------


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
    import time

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


# -- numerics ----------------------------------------------------------------------------------------------------


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
