import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Items(50), batch_size=8)
for epoch in range(3):
    for i, x in enumerate(loader):
        loss = model(x).square().mean() / 4
        loss.backward()
        if (i + 1) % 4 == 0 or (i + 1) == len(loader):
            optimizer.step()
            optimizer.zero_grad()
