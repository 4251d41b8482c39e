# DRAGAN's interpolation: the variance of all numbers of a batch of images is 0 only if they are all the same.
import torch
from torch import nn

critic = nn.Linear(8, 1)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)


def penalty_loss(real):
    near = real + 0.5 * real.var().sqrt() * torch.rand_like(real)
    near = near.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(near).sum(), near, create_graph=True)
    return (slope.pow(2).sum(1) - 1).pow(2).mean()


for _ in range(20):
    real = torch.randn(16, 8)
    loss = -critic(real).mean() + penalty_loss(real)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
