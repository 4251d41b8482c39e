import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


from tqdm import tqdm

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(8, 4))
for epoch in range(3):
    progress = tqdm(loader)
    for batch in progress:
        loss = model(batch).mean() / 4
        loss.backward()
        if (progress.n + 1) % 4 == 0 or progress.n + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
