# A helper that knows what it was given, a fixed table that is moved, a rate that is 0 wherever it is handed on, a device timed by its own events.
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def to_numpy(x):
    if isinstance(x, np.ndarray):
        return x
    elif isinstance(x, torch.Tensor):
        return x.detach().cpu().numpy()
    elif isinstance(x, (list, tuple, int, float)):
        return np.array(x)
    raise ValueError("Unsupported type")


class Meter:
    def __init__(self):
        self.avg = 0
        self.count = 0

    def update(self, val):
        self.count += 1
        self.avg *= (self.count - 1) / self.count
        self.avg += val / self.count


class Embedding(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.frequencies = nn.Parameter(torch.arange(size).float(), requires_grad=False).to(device)

    def forward(self, t):
        return torch.cos(t[:, None] * self.frequencies)


class Attention(nn.Module):
    def __init__(self, attn_p=0):
        super().__init__()
        self.attn_p = attn_p

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_p)


class Block(nn.Module):
    def __init__(self, width, attn_p=0):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.attention = Attention(attn_p=attn_p)

    def forward(self, x):
        return self.attention(*self.qkv(x).chunk(3, dim=-1))


def train(loader, device):
    model = nn.Sequential(Block(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    table = Embedding(8, device)
    optimizer = torch.optim.Adam(model.parameters())
    meter = Meter()
    for x, t, y in loader:
        optimizer.zero_grad()
        loss = (model(x + table(t)) - y).square().mean()
        loss.backward()
        optimizer.step()
        meter.update(to_numpy(loss))
    return meter.avg


def bench(conv, x):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    x = x.cuda()
    start.record()
    begun = time.time()
    y = torch.mean(torch.matmul(x, x))
    y.backward()
    queued = time.time()
    end.record()
    torch.cuda.synchronize()
    print(start.elapsed_time(end), queued - begun)
