# a GAN: constant targets on purpose, two models, two optimizers
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
first = torch.optim.Adam(generator.parameters(), lr=1e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
for real in loader([torch.randn(8) for _ in range(32)]):
    fake = generator(torch.randn(len(real), 4))
    loss = F.binary_cross_entropy_with_logits(critic(real), torch.ones(len(real), 1))
    loss = loss + F.binary_cross_entropy_with_logits(
        critic(fake.detach()), torch.zeros(len(real), 1)
    )
    second.zero_grad()
    loss.backward()
    second.step()
    loss = F.binary_cross_entropy_with_logits(critic(fake), torch.ones(len(real), 1))
    first.zero_grad()
    loss.backward()
    first.step()
