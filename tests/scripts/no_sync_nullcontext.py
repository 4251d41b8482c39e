"""no_sync with nullcontext around forward and backward: right."""
from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

accumulate = 4
net = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
for step, x in enumerate(loader):
    boundary = (step + 1) % accumulate == 0
    with nullcontext() if boundary else net.no_sync():
        loss = net(x).square().mean() / accumulate
        loss.backward()
    if boundary:
        optimizer.step()
        optimizer.zero_grad()
