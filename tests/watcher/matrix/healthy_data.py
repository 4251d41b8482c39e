"""Healthy runs that look odd for their data or their loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watcher.matrix.architectures import mlp, vectors
from watcher.matrix.healthy_run import adam, classify, healthy, update


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
