"""Copies on the host of what passes by. From an accelerator they are sent, and waited for only by whoever reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Copies", "local_part"]


class Copies:
    """`waits`: whoever asks for a copy may wait for the device (a measurement; never a run that is watched)."""

    def __init__(self, *, waits: bool, largest: int) -> None:
        self.waits = waits
        self.largest = largest  # numbers in one tensor
        self._sent: list[Any] = []

    def of(self, tensor: Tensor) -> Tensor | None:
        """A copy that nothing changes any more; None: too large. Not to be read before `arrive`, unless `here`."""
        if tensor.numel() > self.largest or tensor.is_meta:
            return None
        tensor = local_part(tensor.detach())
        if self.waits or not tensor.is_cuda:
            return tensor.to("cpu", copy=True)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        sent: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        sent.record(torch.cuda.current_stream(tensor.device))
        self._sent.append(sent)
        return host

    def here(self, tensor: Tensor) -> bool:
        """Whether looking at the values of this tensor makes nobody wait."""
        return self.waits or tensor.is_cpu

    def arrive(self) -> None:
        """Wait for everything that was sent."""
        sent, self._sent = self._sent, []
        for event in sent:
            event.synchronize()


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor: the whole of it would take a collective."""
    own: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own
