"""Numbers on their way from a device to the host, without anyone waiting for them.

The values of one update are packed into one small tensor, copied behind everything that the device still has to do, and read when
they have arrived: by the guard a few updates later, by the recorder's thread when it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["Number", "Sent", "send", "sent_numbers", "syncs_allowed"]


class Sent:
    """A tensor that was sent to the host. `values` waits for it, `here` does not."""

    __slots__ = ("_arrived", "_host")

    def __init__(self, tensor: Tensor) -> None:
        self._host, self._arrived = _to_host(tensor.detach())

    def here(self) -> bool:
        """Whether it has arrived; false where only reading it can tell."""
        return self._host.is_cpu and (self._arrived is None or bool(self._arrived.query()))

    def values(self) -> Any:
        """As `tolist`, once it has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return self._host.tolist()


class Number:
    """One of the numbers that were sent together; `float` and `bool` of it wait until it is there."""

    __slots__ = ("_at", "_sent")

    def __init__(self, sent: Sent, at: int) -> None:
        self._sent = sent
        self._at = at

    def here(self) -> bool:
        """Whether it can be read without waiting."""
        return self._sent.here()

    def __float__(self) -> float:
        return float(self._sent.values()[self._at])

    def __bool__(self) -> bool:
        return bool(self._sent.values()[self._at])


def send(tensor: Tensor) -> Sent:
    """What is on the host already is there at once."""
    return Sent(tensor)


def sent_numbers(values: Sequence[Tensor]) -> list[Number]:
    """These scalars of one device as they are now, in one copy."""
    with torch.no_grad():
        wide = torch.float64 if any(v.dtype is torch.float64 for v in values) else torch.float32
        packed = torch.stack(
            [v if v.dtype is wide and not v.dim() else v.reshape(()).to(wide) for v in values]
        )
    sent = Sent(packed)
    return [Number(sent, i) for i in range(len(values))]


@contextmanager
def syncs_allowed() -> Iterator[None]:
    """What is looked into after a bad update waits for the device, also where the script has forbidden itself to."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    if not mode:
        yield
        return
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _to_host(tensor: Tensor) -> tuple[Tensor, Any]:
    """Where the values will be, and what says that they are; None where they are there, or where reading waits for them."""
    if tensor.is_cpu:
        return tensor, None
    if tensor.is_cuda:
        # device: a script may have made another one torch's default
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(tensor.device))
        return host, arrived
    # MPS, XPU: kept on the device, and read late
    return tensor.clone(), None
