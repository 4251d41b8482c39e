import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


generator, critic = (
    nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
    nn.Sequential(nn.Linear(4, 1), nn.Dropout()),
)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
loader = DataLoader(torch.randn(64, 4), batch_size=8)
for epoch in range(3):
    for x in loader:
        generator.eval()
        critic.train()
        second.zero_grad()
        loss = critic(generator(x).detach()).mean() - critic(x).mean()
        loss.backward()
        second.step()
        generator.train()
        critic.eval()
        first.zero_grad()
        fooled = -critic(generator(x)).mean()
        fooled.backward()
        first.step()
