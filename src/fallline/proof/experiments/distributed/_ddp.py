"""What experiments on two ranks share: a model in DDP whose traffic is counted, data of each rank's own, how far ranks are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Batch", "Traffic", "apart", "batches", "flat", "in_ddp", "mse", "network"]

Batch = tuple[Tensor, Tensor]
mse = nn.functional.mse_loss


@dataclass
class Traffic:
    """What one rank's DDP sent."""

    all_reduces: int = 0
    bytes: int = 0


def network() -> nn.Module:
    """The same small network on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def in_ddp(model: nn.Module) -> tuple[DistributedDataParallel, Traffic]:
    """The model in DDP, and a count of what it sends."""
    traffic = Traffic()

    def sent(group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        traffic.all_reduces += 1
        traffic.bytes += bucket.buffer().nbytes
        return allreduce_hook(group, bucket)

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(
        None, lambda group, bucket: sent(group, bucket)
    )  # DDP looks at a hook's annotations
    return wrapped, traffic


def batches(rank: int, number: int, size: int = 16) -> list[Batch]:
    """A rank's own share of one task: a noisy linear teacher."""
    teacher = torch.randn(8, 1, generator=torch.Generator().manual_seed(1))
    own = torch.Generator().manual_seed(100 + rank)
    found = []
    for _ in range(number):
        x = torch.randn(size, 8, generator=own)
        found.append((x, x @ teacher + 0.1 * torch.randn(size, 1, generator=own)))
    return found


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters, one after the other."""
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def apart(model: nn.Module) -> float:
    """The largest difference between a parameter here and the same one on rank 0."""
    mine = flat(model)
    first = mine.clone()
    dist.broadcast(first, src=0)
    far = (mine - first).abs().max()
    dist.all_reduce(far, op=dist.ReduceOp.MAX)
    return far.item()
