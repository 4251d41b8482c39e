import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


import torch.distributed as dist


def main(rank, world_size, model, loader, optimizer):
    if world_size > 1:
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        model = nn.parallel.DistributedDataParallel(model)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    if world_size == 1:
        torch.save(model.state_dict(), "model.pt")
    elif rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
