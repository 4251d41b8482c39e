import torch
from torch import nn

batch_size = 4
lr = 1e-2 / batch_size  # the average over the rollouts of an update
policy = nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
for episode in range(100):
    loss = policy(torch.randn(16, 4)).square().mean()
    loss.backward()
    if (episode + 1) % batch_size == 0:
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
