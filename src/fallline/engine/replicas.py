"""The copies of the model on other ranks: when they synchronise, and what all ranks have seen together.

DDP and FSDP2 are torch's own; this only asks them for the right thing at the right time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fallline.engine.gradients import as_real, is_dtensor, some
from fallline.engine.wrappers import Reduction, wrappers_of
from fallline.errors import EngineError

__all__ = ["Replicas"]


class Replicas:
    """How many data-parallel ranks there are, and the switch that makes a backward pass synchronise them.

    `size` is the number of ranks that see different data: 1 for a model that is not wrapped.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        process_group: Any = None,
        reduction: Reduction | None = None,
    ) -> None:
        self._wrappers = [] if reduction == "none" else wrappers_of(models)
        self._reduction = reduction
        if reduction is None:
            for wrapper in self._wrappers:
                wrapper.check()
        self._groups = self._agree(process_group)
        self.size = math.prod(dist.get_world_size(group) for group in self._groups)
        self.rank = 0
        for group in self._groups:
            self.rank = self.rank * dist.get_world_size(group) + dist.get_rank(group)
        # Whether forward and backward passes are collective, synchronised or not
        self.lockstep = any(w.collective_forward for w in self._wrappers)
        self.keeps_gradients = any(w.keeps_gradients for w in self._wrappers)

    def _agree(self, given: Any) -> list[Any]:
        """The groups over which the wrappers really reduce. What the user says must fit."""
        found = [groups for w in self._wrappers if (groups := w.groups())]
        if not found:
            return []
        if any(groups != found[0] for groups in found):
            raise EngineError(
                "the models of this Stepper are synchronised over different process groups: give each its own Stepper"
            )
        reduced = math.prod(dist.get_world_size(group) for group in found[0])
        if given is None:
            return found[0]
        if dist.get_world_size(given) != reduced:
            raise EngineError(
                f"process_group has {dist.get_world_size(given)} ranks, and the wrapper reduces gradients over {reduced}: "
                "leave process_group out, the Stepper reads it from the wrapper"
            )
        return [given]

    def check_covered(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Every trained parameter must be synchronised by somebody: otherwise ranks drift apart, and nobody notices."""
        if self._reduction == "none" or not dist.is_initialized() or dist.get_world_size() == 1:
            return
        covered = {id(p) for w in self._wrappers for p in w.covers()}
        loose = [(name, p) for name, p in named if p.requires_grad and id(p) not in covered]
        if not loose:
            return
        if self._wrappers:
            raise EngineError(
                f"{some([name for name, _ in loose])}: not synchronised between ranks, because it is outside of the DDP or FSDP2 model. "
                "Wrap the whole model, after unfreezing what is to be trained"
            )
        meshes = [p.device_mesh.size() for _, p in loose if is_dtensor(p)]  # type: ignore[attr-defined]
        if max(meshes, default=1) < dist.get_world_size():
            raise EngineError(
                f"there are {dist.get_world_size()} ranks and the model is not wrapped, so each rank would train its own model: "
                "wrap it in DistributedDataParallel or fully_shard (ranks.wrap does it). "
                'If every rank is meant to train alone, say so: Stepper(..., reduction="none")'
            )

    def divisor(self) -> float:
        """What torch has divided the sum over ranks by. Read for every update, because FSDP2's can be changed."""
        if self._reduction is not None:
            return float(self.size) if self._reduction == "mean" else 1.0
        factors = {w.divisor() for w in self._wrappers}
        if len(factors) > 1:
            raise EngineError(
                "the models of this Stepper divide gradients by different factors: give each its own Stepper"
            )
        factor = factors.pop() if factors else None
        return float(self.size) if factor is None else float(factor)

    def kept(self) -> list[Tensor | None]:
        """The gradients of an open window that FSDP2 keeps inside."""
        return [g for w in self._wrappers for g in w.kept()]

    def enter(self, synchronise: bool) -> None:
        """Before the forward pass: DDP decides there whether its backward pass will all-reduce."""
        for wrapper in self._wrappers:
            wrapper.switch(synchronise)

    def leave(self) -> None:
        for wrapper in self._wrappers:
            wrapper.leave()

    def arrivals(self) -> list[list[int]]:
        return [w.arrival() for w in self._wrappers]

    def replay(self, orders: Sequence[Sequence[int]]) -> None:
        for wrapper, order in zip(self._wrappers, orders, strict=False):
            wrapper.replay(order)

    def start_sum(self, value: float | Tensor, device: torch.device) -> tuple[Tensor, Any]:
        """Begin to add up one number over the ranks, so that it travels while backward computes."""
        if isinstance(value, Tensor):
            total = value.detach().to(device, torch.float64, copy=True).reshape(1)
        else:
            total = torch.tensor([value], dtype=torch.float64, device=device)
        return total, dist.all_reduce(total, group=self._groups[-1], async_op=True)

    def finish_sum(self, total: Tensor, work: Any) -> Tensor:
        """Orders the device's queue; on a GPU the host does not wait. With HSDP, the second dimension follows here."""
        work.wait()
        for group in self._groups[:-1]:
            dist.all_reduce(total, group=group)
        return total

    def add_up(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The sums of a few numbers over the ranks. Waits for the device."""
        total = torch.tensor(values, dtype=torch.float64, device=device)
        for group in self._groups:
            dist.all_reduce(total, group=group)
        sums: list[float] = total.tolist()
        return sums

    def anywhere(self, flag: bool, parameters: Sequence[Tensor]) -> bool:
        """Whether it is so on any rank that holds a part or a copy of this model. Waits for the device."""
        meshes = dict.fromkeys(p.device_mesh for p in parameters if is_dtensor(p))  # type: ignore[attr-defined]
        of_meshes = [mesh.get_group(d) for mesh in meshes for d in range(mesh.ndim)]
        groups = dict.fromkeys([*self._groups, *of_meshes])
        if not groups:
            return flag
        total = torch.tensor([float(flag)], device=parameters[0].device)
        for group in groups:
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
        return bool(total)

    def largest(self, value: float, device: torch.device) -> float:
        """The largest of one number over the ranks. Waits for the device."""
        total = torch.tensor([value], dtype=torch.float64, device=device)
        for group in self._groups:
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
        return float(total)

    def gather(self, values: Sequence[int], device: torch.device) -> list[list[int]]:
        """The same few integers from every rank, in rank order. Waits for the device."""
        table = torch.tensor([values], device=device)
        for group in reversed(self._groups):
            out = [torch.empty_like(table) for _ in range(dist.get_world_size(group))]
            dist.all_gather(out, table, group=group)
            table = torch.cat(out)
        rows: list[list[int]] = table.tolist()
        return rows

    def average(
        self, gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """What the wrapper would have done with gradients that were accumulated without synchronising."""
        if self.keeps_gradients:
            raise EngineError(
                "this window was never synchronised and FSDP2 keeps its gradients inside: say micro_batch(last=True) for the last "
                "micro-batch before step(), or iterate with stepper.over(loader), which does it"
            )
        whole = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(gradients, parameters, strict=True)
        ]
        real = [as_real(g) for g in whole]
        wide = torch.float64 if any(g.dtype is torch.float64 for g in real) else torch.float32
        flat = torch.cat([g.reshape(-1).to(wide) for g in real])
        for group in self._groups:
            dist.all_reduce(flat, group=group)
        flat /= self.divisor()
        for g, part in zip(real, torch.split(flat, [g.numel() for g in real]), strict=True):
            g.copy_(part.view_as(g))
        return whole
