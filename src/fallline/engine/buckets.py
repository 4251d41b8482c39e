"""The same bits after a resume, with DDP on more than two ranks.

DDP reduces gradients in buckets, and the order in which an all-reduce adds up ranks depends on the place in a bucket. After the first update DDP
lays its buckets out again, in the order in which gradients arrived. A resumed process would begin with the first layout again: the same sums, other
roundings. So the order of arrival is saved, and when it is loaded DDP gets to see gradients (zeros) in that order, which makes it lay out the same buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Arrival"]


class Arrival:
    """The order in which gradients arrived in the first synchronised backward pass of one DDP model, by parameter number."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._handles: list[Any] = []
        self._listened = not _lays_out_again(ddp)
        self.order: list[int] = []

    def listen(self) -> None:
        """Before the first forward pass whose backward pass synchronises."""
        if self._listened:
            return
        self._listened = True
        for number, parameter in enumerate(self._ddp.module.parameters()):
            if parameter.requires_grad:
                hook = partial(self._arrived, number)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _arrived(self, number: int, _: Tensor) -> None:
        self.order.append(number)

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def replay(self, order: Sequence[int]) -> None:
        """Make DDP lay out the buckets that it had. All ranks together."""
        parameters = list(self._ddp.module.parameters())
        if self._listened or not order or max(order) >= len(parameters):
            return
        self._listened, self.order = True, list(order)
        grads = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        chain = torch.zeros((), device=parameters[0].device)
        for number in reversed(order):
            chain = _Link.apply(chain, parameters[number])  # type: ignore[no-untyped-call]
        self._ddp.reducer.prepare_for_backward([])
        chain.backward()  # type: ignore[no-untyped-call]
        self._ddp.reducer._rebuild_buckets()
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad


def _lays_out_again(ddp: DistributedDataParallel) -> bool:
    """Whether DDP will, and whether it matters: two numbers have the same sum in any order."""
    plain = not (ddp.find_unused_parameters or ddp.static_graph or getattr(ddp, "_comm_hooks", []))
    return plain and dist.get_world_size(ddp.process_group) > 2


class _Link(torch.autograd.Function):
    """One parameter of a chain: its gradient, zero, arrives before that of the next."""

    @staticmethod
    def forward(ctx: Any, chain: Tensor, parameter: Tensor) -> Tensor:
        ctx.like = parameter
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.zeros_like(ctx.like)
