"""A number for the bits of a tensor, computed where the tensor is, without waiting for the device.

Integer sums come out the same in any order, so a fingerprint is exact even where floating-point sums are not: two tensors with one
different bit have different fingerprints, and chance makes two others equal once in 2⁶⁴.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["Fingerprint", "fingerprint", "resolve", "together"]

Fingerprint = Tensor | int  # a 0-dim integer tensor until it is resolved

_CHUNK = 1 << 20
_ODD = (
    -7046029254386353131
)  # 2⁶⁴ / golden ratio: neighbours get weights that have nothing in common
_MIX = 6364136223846793005
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Of the values in their order; shape and type are not in it. 0 for what has no bits to read (meta, sparse, a subclass)."""
    plain = tensor.detach()
    if type(plain) not in (Tensor, torch.nn.Parameter) or plain.layout is not torch.strided:
        return 0
    if plain.device.type == "meta" or plain.is_quantized or not plain.numel():
        return 0
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    plain = plain.resolve_neg().reshape(-1)
    if plain.dtype is not torch.bool:
        plain = plain.view(_INTEGERS[plain.element_size()])
    weights = _weights_on(plain.device)
    found = torch.zeros((), dtype=torch.int64, device=plain.device)
    for chunk in torch.split(plain, _CHUNK):
        found = found * _MIX + (chunk.to(torch.int64) * weights[: chunk.numel()]).sum()
    return found


@cache
def _weights_on(device: torch.device) -> Tensor:
    places = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device)
    mixed = places * _ODD
    mixed = (mixed ^ (mixed >> 31)) * _MIX
    return mixed | 1  # odd: no change of one element is lost


def together(parts: Iterable[Fingerprint]) -> Fingerprint:
    """One fingerprint for several tensors."""
    found: Any = 0
    for number, part in enumerate(parts):
        if isinstance(found, Tensor) and isinstance(part, Tensor) and found.device != part.device:
            part = part.to(found.device)
        found = part if number == 0 else found * _MIX + part
    return _wrapped(found) if isinstance(found, int) else found


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def resolve(parts: list[Fingerprint]) -> list[int]:
    """All of them as numbers: one wait for each device."""
    by_device: dict[torch.device, dict[int, Tensor]] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Tensor):
            by_device.setdefault(part.device, {})[index] = part
    found = [part if isinstance(part, int) else 0 for part in parts]
    for waiting in by_device.values():
        values = torch.stack(list(waiting.values())).tolist()
        for index, value in zip(waiting, values, strict=True):
            found[index] = int(value)
    return found
