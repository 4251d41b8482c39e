"""The copies of the model on other ranks: when they synchronise, and what all ranks have seen together.

DDP and FSDP2 are torch's own; this only asks them for the right thing at the right time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fallline.engine.gradients import is_dtensor
from fallline.errors import EngineError

__all__ = ["Replicas"]


class Replicas:
    """How many data-parallel ranks there are, and the switch that makes a backward pass synchronise them.

    `size` is what torch divides the summed gradients by: 1 for a model that is not wrapped.
    """

    def __init__(self, models: Sequence[nn.Module], process_group: Any = None) -> None:
        modules = [module for model in models for module in model.modules()]
        self.ddp = [m for m in modules if isinstance(m, DistributedDataParallel)]
        self.fsdp = _outermost(modules)
        if self.ddp and self.fsdp:
            raise EngineError("DDP and FSDP2 in one Stepper: wrap the model in one of them")
        self.group = process_group
        if self.group is None and self.ddp:
            self.group = self.ddp[0].process_group
        elif self.group is None and self.fsdp:
            self.group = _mesh_group(self.fsdp)
        wrapped = bool(self.ddp or self.fsdp)
        self.size = dist.get_world_size(self.group) if wrapped else 1
        self.rank = dist.get_rank(self.group) if wrapped else 0
        # Its forward and backward passes are collective, synchronised or not
        self.lockstep = bool(self.fsdp)
        self._open: list[AbstractContextManager[None]] = []
        self._fsdp_synchronises: bool | None = None

    def enter(self, synchronise: bool) -> None:
        """Before the forward pass: DDP decides there whether its backward pass will all-reduce."""
        if not synchronise:
            for module in self.ddp:
                context = module.no_sync()
                context.__enter__()
                self._open.append(context)
        if self.fsdp and self._fsdp_synchronises is not synchronise:
            for module in self.fsdp:
                module.set_requires_gradient_sync(synchronise)
            self._fsdp_synchronises = synchronise

    def leave(self) -> None:
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def start_sum(self, value: float | Tensor, device: torch.device) -> tuple[Tensor, Any]:
        """Begin to add up one number over the ranks, so that it travels while backward computes."""
        if isinstance(value, Tensor):
            total = value.detach().to(device, torch.float64, copy=True).reshape(1)
        else:
            total = torch.tensor([value], dtype=torch.float64, device=device)
        return total, dist.all_reduce(total, group=self.group, async_op=True)

    def largest(self, value: float, device: torch.device) -> float:
        """The largest of one number over the ranks. Waits for the device."""
        total = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(total, op=dist.ReduceOp.MAX, group=self.group)
        return float(total)

    def gather(self, values: Sequence[int], device: torch.device) -> list[list[int]]:
        """The same few integers from every rank, in rank order. Waits for the device."""
        mine = torch.tensor(values, device=device)
        out = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(out, mine, group=self.group)
        return [row.tolist() for row in out]

    def average(
        self, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """What DDP would have done: the mean over ranks of gradients that were accumulated under no_sync."""
        if self.fsdp:
            raise EngineError(
                "this window was never synchronised and FSDP2 keeps its gradients inside: say micro_batch(last=True) for the last "
                "micro-batch before step(), or iterate with stepper.over(loader), which does it"
            )
        whole = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(gradients, parameters, strict=True)
        ]
        flat = torch.cat(
            [
                g.reshape(-1).to(torch.float64 if g.dtype is torch.float64 else torch.float32)
                for g in whole
            ]
        )
        dist.all_reduce(flat, group=self.group)
        flat /= self.size
        for g, part in zip(whole, torch.split(flat, [g.numel() for g in whole]), strict=True):
            g.copy_(part.view_as(g))
        return whole


def _outermost(modules: Sequence[nn.Module]) -> list[Any]:
    """The FSDP2 roots. If the user never imported FSDP, no module can be one, and we need not import it either."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in modules):
        raise EngineError(
            "FSDP1 (FullyShardedDataParallel) is not supported: shard with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    sharded = [m for m in modules if isinstance(m, fsdp.FSDPModule)]
    inner = {id(child) for m in sharded for child in m.modules() if child is not m}
    return [m for m in sharded if id(m) not in inner]


def _mesh_group(sharded: Sequence[nn.Module]) -> Any:
    meshes = {p.device_mesh for m in sharded for p in m.parameters() if is_dtensor(p)}  # type: ignore[attr-defined]
    if len(meshes) != 1 or next(iter(meshes)).ndim != 1:
        raise EngineError(
            "the model is sharded over more than one mesh dimension, so the Stepper cannot tell which ranks see different data: "
            "give it their group, Stepper(..., process_group=mesh['dp'].get_group())"
        )
    return next(iter(meshes)).get_group()
