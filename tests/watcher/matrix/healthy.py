"""Healthy runs that look odd. Not one of them may yield an error or a warning."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import (
    ARCHITECTURES,
    Attention,
    Recurrent,
    cnn,
    images,
    mlp,
    sequences,
    tokens,
    vectors,
)

__all__ = ["HEALTHY"]

HEALTHY: dict[str, Callable[[], None]] = {}


def healthy(train: Callable[[], None]) -> Callable[[], None]:
    HEALTHY[train.__name__.replace("_", "-")] = train
    return train


def adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def update(
    optimizer: torch.optim.Optimizer, loss: Tensor, clip: Any = None, limit: float = 1.0
) -> None:
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        clip_grad_norm_(clip.parameters(), limit)
    optimizer.step()


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


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
def unfreezing() -> None:
    model = mlp()
    for p in model[:4].parameters():
        p.requires_grad_(False)
    optimizer = adam(model)
    for step in range(160):
        if step == 80:
            for p in model.parameters():
                p.requires_grad_(True)
        update(optimizer, classify(model, vectors(32)))


@healthy
def unfreezing_by_no_grad() -> None:
    body, head = mlp(), nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for step in range(160):
        x, y = vectors(32)
        with torch.set_grad_enabled(step >= 60):
            features = body(x)
        update(optimizer, F.cross_entropy(head(features), y))


@healthy
def curriculum_shift() -> None:
    model = mlp()
    optimizer = adam(model)
    for step in range(200):
        x, y = vectors(32)
        if step < 100:
            y = (x[:, 0] > 0).long()  # two easy classes first, then all four
        update(optimizer, F.cross_entropy(model(x), y))


@healthy
def harder_data_ten_times_the_norm() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = adam(model, 1e-2)
    for step in range(240):
        x = torch.randn(32, 8)
        target = x[:, :1] * (1 if step < 120 else 6)
        update(optimizer, F.mse_loss(model(x), target))


@healthy
def gan_at_equilibrium() -> None:
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    one, zero = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(150):
        fake = generator(torch.randn(64, 4))
        real = torch.randn(64, 2)
        loss = F.binary_cross_entropy_with_logits(critic(real), one)
        loss = loss + F.binary_cross_entropy_with_logits(critic(fake.detach()), zero)
        update(for_critic, loss)
        update(for_generator, F.binary_cross_entropy_with_logits(critic(fake), one))


@healthy
def policy_gradient_noise() -> None:
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = adam(policy, 1e-2)
    for _ in range(200):
        state = torch.randn(16, 4)
        distribution = torch.distributions.Categorical(logits=policy(state))
        action = distribution.sample()
        reward = (action == (state[:, 0] > 0).long()).float() + torch.randn(16)
        update(optimizer, -(distribution.log_prob(action) * (reward - 0.5)).mean())


@healthy
def q_learning_with_rare_large_errors() -> None:
    value = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = adam(value)
    for _ in range(200):
        state = torch.randn(16, 4)
        target = state[:, :1] + 5 * (torch.rand(16, 1) < 0.02).float() * torch.randn(16, 1)
        update(optimizer, F.smooth_l1_loss(value(state), target), clip=value, limit=10.0)


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
def low_rank_adapters_start_at_zero() -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    model = nn.Sequential(Adapted(nn.Linear(16, 32)), nn.ReLU(), Adapted(nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))


@healthy
def embeddings_rarely_used() -> None:
    table, head = nn.Embedding(5_000, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(120):
        words = torch.randint(0, 40, (32,))
        update(optimizer, F.cross_entropy(head(table(words)), words % 4))


@healthy
def sparse_embeddings() -> None:
    table, head = nn.Embedding(5_000, 16, sparse=True), nn.Linear(16, 4)
    sparse, dense = torch.optim.SparseAdam(list(table.parameters()), lr=1e-2), adam(head, 1e-2)
    for _ in range(120):
        words = torch.randint(0, 40, (32,))
        loss = F.cross_entropy(head(table(words)), words % 4)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


@healthy
def mixture_of_experts() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 12)
            self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(12))

        def forward(self, x: Tensor) -> Tensor:
            chance, chosen = self.router(x).softmax(-1).max(-1)
            outputs = torch.zeros(len(x), 4)
            for number, expert in enumerate(self.experts):
                mine = chosen == number
                if mine.any():
                    outputs = outputs.index_put(
                        (mine.nonzero().squeeze(1),), expert(x[mine]) * chance[mine, None]
                    )
            return outputs

    model = Mixture()
    optimizer = adam(model, 1e-2)
    for _ in range(120):
        update(optimizer, classify(model, vectors(4)))


@healthy
def frozen_backbone() -> None:
    model = cnn()
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    optimizer = adam(model, 1e-2)
    for _ in range(100):
        update(optimizer, classify(model, images(16)))


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
def loss_that_changes_sign() -> None:
    mean, scale = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*mean.parameters(), *scale.parameters()], lr=1e-2)
    for _ in range(250):
        x = torch.randn(64, 8)
        y = x[:, :1] + 0.02 * torch.randn(64, 1)
        deviation = F.softplus(scale(x)) + 1e-2
        update(
            optimizer,
            -torch.distributions.Normal(mean(x), deviation).log_prob(y).mean(),
            clip=mean,
            limit=50.0,
        )


@healthy
def spikes_of_three() -> None:
    model = mlp()
    optimizer = adam(model)
    for step in range(200):
        loss = classify(model, vectors(32))
        update(optimizer, loss * (3 if step % 45 == 44 else 1))


@healthy
def one_number_to_fit() -> None:
    value = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([value], lr=0.05)
    for _ in range(150):
        update(optimizer, (value - 3 + 0.1 * torch.randn(())).square())


@healthy
def bias_before_batchnorm() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = adam(model)
    for _ in range(120):
        update(optimizer, classify(model, vectors(32)))


@healthy
def deep_tanh_that_learns() -> None:
    layers: list[nn.Module] = [nn.Linear(16, 32)]
    for _ in range(6):
        layers += [nn.Tanh(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = adam(model)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))


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


@healthy
def two_heads_by_turns() -> None:
    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=3e-3)
    for step in range(200):
        x, y = vectors(32)
        update(optimizer, F.cross_entropy(heads[step % 2](body(x)), y if step % 2 else 3 - y))


@healthy
def heads_by_epoch() -> None:
    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=3e-3)
    for step in range(240):
        x, y = vectors(32)
        update(optimizer, F.cross_entropy(heads[step // 80 % 2](body(x)), y))


@healthy
def overfitted_to_nothing() -> None:
    x, y = vectors(16)
    model = mlp()
    optimizer = adam(model, 1e-2)
    for _ in range(300):
        update(optimizer, F.cross_entropy(model(x), y))


@healthy
def random_labels_without_signal() -> None:
    model = mlp()
    optimizer = adam(model, 1e-3)
    for _ in range(200):
        x, _ = vectors(64)
        update(optimizer, F.cross_entropy(model(x), torch.randint(0, 4, (64,))))


@healthy
def contrastive_loss_on_a_plateau() -> None:
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = adam(encoder)
    for _ in range(150):
        x, _ = vectors(32)
        a = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        b = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        update(optimizer, F.cross_entropy(a @ b.T / 0.2, torch.arange(32)))


@healthy
def several_models_one_after_another() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        model = mlp()
        optimizer = adam(model)
        for _ in range(60):
            update(optimizer, classify(model, vectors(32)))


@healthy
def scalar_history_and_replay_buffer() -> None:
    model = mlp()
    optimizer = adam(model)
    losses: list[Tensor] = []
    memory: list[Tensor] = []
    for _ in range(150):
        x, y = vectors(32)
        output = model(x)
        loss = F.cross_entropy(output, y)
        update(optimizer, loss)
        losses.append(loss.detach())
        memory.append(output.detach())


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
def average_of_weights_kept_aside() -> None:
    model = mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = adam(model)
    for _ in range(120):
        x, y = vectors(32)
        output = model(x)
        update(optimizer, F.cross_entropy(output, y) + 0.1 * F.mse_loss(output, teacher(x)))
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)


@healthy
def learning_rate_finder() -> None:
    """The rate rises until the loss turns up, and the search stops there."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for step in range(120):
        optimizer.param_groups[0]["lr"] = 1e-5 * math.exp(step * 0.09)
        update(optimizer, classify(model, vectors(64)))


@healthy
def every_architecture_briefly() -> None:
    for arch in ARCHITECTURES.values():
        model = arch.model()
        optimizer = adam(model, 1e-3)
        for _ in range(70):
            x, y = arch.batch(16)
            update(optimizer, arch.loss(model(x), y))
