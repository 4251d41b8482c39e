"""A model is taken out of DDP, changed, and wrapped again: its forward pass goes through the new wrapper."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(32, 2), torch.randn(32, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
model = DistributedDataParallel(nn.Linear(2, 1))
model = model.module
for parameter in model.parameters():
    parameter.requires_grad = True
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
