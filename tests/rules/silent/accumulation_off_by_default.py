import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation-steps", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).cuda())
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(
    torch.randn(64, 4),
    batch_size=4,
    sampler=torch.utils.data.DistributedSampler(range(64), shuffle=False),
)
for i, x in enumerate(loader):
    loss = model(x.cuda()).square().mean() / args.accumulation_steps
    loss.backward()
    if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
