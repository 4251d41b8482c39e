"""Whether gradients on an accelerator are finite, and what becomes of them where they are not: all of it on the device.

One pass gives a flag that stays there. A fused optimizer takes it as `found_inf` and applies nothing; before any other optimizer's
step the gradients are set to zero where the flag is set, by a kernel that returns at once where it is not. Where there is no Triton
(MPS, XPU), operations of torch do the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.engine.statistics import has_kernel

__all__ = ["Look", "values_of", "wipe"]


class Look:
    """At all gradients of one step. `flag`: 1 where any of them is not finite; `norm` of all, where the kernel measures it."""

    def __init__(self, gradients: list[Tensor]) -> None:
        # one list at a time, in C: on a small model the host has less time than the device
        if len(set(map(Tensor.get_device, gradients))) == 1:
            self._parts = [_Part(gradients)]
        else:
            by_device: dict[torch.device, list[Tensor]] = {}
            for g in gradients:
                by_device.setdefault(g.device, []).append(g)
            self._parts = [_Part(group) for group in by_device.values()]
        first = self._parts[0]
        self.flag, self.norm = first.flag, first.norm
        if len(self._parts) > 1:
            there = [part.flag.to(first.flag.device, non_blocking=True) for part in self._parts]
            self.flag, self.norm = torch.stack(there).amax(), None

    def wipe(self) -> None:
        """Set the gradients to zero where the flag is set."""
        for part in self._parts:
            part.wipe(self.flag.to(part.flag.device, non_blocking=True))


class _Part:
    """The gradients on one device."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self._values: list[Tensor] = []
        self._table: Any = None
        self.norm: Tensor | None = None
        if set(map(type, gradients)) == {Tensor}:
            self._table = _table(gradients)  # which takes their memory alone, as it is
        if self._table is None:
            self._values = [v for g in gradients if (v := values_of(g)).numel()]
            self._table = _table(self._values)
        if self._table is not None:
            partial, result = self._table.measure(1.0, None, None)
            self.flag, self.norm = self._table.nonfinite(partial), result[0, 0]
        elif self._values:
            self.flag = _flag(self._values)
        else:  # a rank may hold no row of any of them
            self.flag = torch.zeros((), device=gradients[0].device)

    def wipe(self, flag: Tensor) -> None:
        if self._table is not None:
            self._table.wipe(flag)
        else:
            wipe(self._values, flag)


def _table(values: list[Tensor]) -> Any:
    """For the engine's kernels; None where they cannot read these."""
    if not values or not has_kernel(values[0]):
        return None
    from fallline.engine.tables import table_of  # needs Triton

    return table_of(values, (0,) * len(values))


def values_of(gradient: Tensor) -> Tensor:
    """The memory of a gradient on this rank, as real numbers. What is written there does not count as a change of the tensor."""
    here: Tensor = getattr(gradient, "_local_tensor", gradient).data
    if here.is_sparse:
        here = here._values()
    elif here.layout is not torch.strided:
        here = here.values()
    return torch.view_as_real(here) if here.is_complex() else here


def wipe(values: list[Tensor], flag: Tensor) -> None:
    """Set these to zero where the flag is set; nobody waits."""
    bad = flag.bool()
    for value in values:
        value.masked_fill_(bad, 0.0)


@torch.no_grad()
def _flag(values: list[Tensor]) -> Tensor:
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for v in values:
        by_dtype.setdefault(v.dtype, []).append(v)
    fine = [torch.isfinite(torch.stack(_largest(group))).all() for group in by_dtype.values()]
    return (~torch.stack(fine).all()).float()


def _largest(group: list[Tensor]) -> list[Tensor]:
    """The largest size in each tensor: NaN or Inf where one of its values is, and never an overflow of finite ones."""
    try:
        return list(torch._foreach_norm(group, float("inf")))
    except (RuntimeError, NotImplementedError):  # a type or device that this is not made for
        return [v.abs().amax() for v in group]
