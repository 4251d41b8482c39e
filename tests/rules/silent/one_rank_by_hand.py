import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader

dist.init_process_group("nccl", init_method="tcp://localhost:12345", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x in DataLoader(torch.randn(64, 4), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        model(x.cuda()).pow(2).mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
