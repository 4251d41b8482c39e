# Q-learning: the target network is never trained
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for _ in range(8):
    states, after, rewards = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
    actions = torch.randint(2, (16, 1))
    with torch.no_grad():
        wanted = rewards + 0.9 * target(after).max(1).values
    loss = F.smooth_l1_loss(online(states).gather(1, actions)[:, 0], wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
