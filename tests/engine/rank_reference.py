"""What the stories of the ranks share: a model, its batches, and the update of one process that they are compared with."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from fallline.errors import EngineError


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def counting(ddp: DistributedDataParallel) -> list[int]:
    """Counts gradient all-reduces: this model has one bucket."""
    calls = [0]

    def hook(state, bucket):
        calls[0] += 1
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, hook)
    return calls


def batches_of(
    rng: random.Random, ranks: list[int]
) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(rng.randrange(10**6))

    def one() -> tuple[torch.Tensor, torch.Tensor]:
        n = rng.randint(1, 4)
        make = {"dtype": torch.float64, "generator": generator}
        return torch.randn(n, 3, **make), torch.randn(n, 2, **make)

    return [[one() for _ in range(count)] for count in ranks]


def reference(model, batches, accumulate, weighted, clip, lr=0.1):
    """One process, all ranks' batches of a window at once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    updates = max(-(-len(b) // accumulate) for b in batches)
    for update in range(updates):
        window = [
            pair for b in batches for pair in b[update * accumulate : (update + 1) * accumulate]
        ]
        optimizer.zero_grad()
        if weighted:
            x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
            nn.functional.mse_loss(model(x), y).backward()
        else:
            torch.stack([nn.functional.mse_loss(model(x), y) for x, y in window]).mean().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return updates


def assert_same_on_all_ranks(model: nn.Module) -> None:
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(every, flat)
    assert all(torch.equal(flat, other) for other in every), "ranks differ"


def assert_close(mine: nn.Module, want: nn.Module, tolerance: float = 1e-12) -> None:
    for a, b in zip(mine.parameters(), want.parameters(), strict=True):
        difference = float((a.detach() - b.detach()).abs().max())
        assert difference <= tolerance, difference


def backward(micro, model, x, y, weighted):
    if weighted:
        micro.backward((model(x) - y).square().sum(), weight=y.numel())
    else:
        micro.backward(nn.functional.mse_loss(model(x), y))


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def refused(says: str, action) -> None:
    try:
        action()
    except EngineError as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"accepted, and should say {says!r}")
