"""Calls in which all ranks have to meet: all_reduce, broadcast, barrier and their kin, by the code itself or by a framework.

What DDP and FSDP send from C++ does not pass here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published_at_rest, switch

__all__ = ["COLLECTIVE", "Collective"]

_NAMES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip


@dataclass(slots=True)
class Collective(Call):
    """One of them. The outermost: what it calls itself is not told."""

    what: str
    everybody: bool  # of all ranks, not of a group


class _Depth:
    """How many collectives the training thread is inside of."""

    def __init__(self) -> None:
        self.now = 0


_depth = _Depth()


def _install(patches: Patches) -> None:
    if not torch.distributed.is_available():
        return
    defined = torch.distributed.distributed_c10d
    for name in _NAMES:
        if hasattr(defined, name):
            original = getattr(defined, name)
            patches.patch(defined, name, functools.partial(_tell, name), imported=True)
            wrapper = getattr(defined, name)
            if getattr(torch.distributed, name, None) is original:  # the same under its other name
                setattr(torch.distributed, name, wrapper)
                patches.on_removal(functools.partial(setattr, torch.distributed, name, original))


def _tell(name: str, original: Wrapped) -> Wrapped:
    def collective(*args: Any, **kwargs: Any) -> Any:
        if switch.replaying:  # the other ranks are not there
            raise RuntimeError(f"{name}() needs the other ranks, which do not run this again")
        if torch.compiler.is_compiling() or _depth.now or not published_at_rest():
            return original(*args, **kwargs)
        group = kwargs.get("group")
        call = Collective(caller(), name, group is None or group is torch.distributed.group.WORLD)
        _depth.now += 1
        try:
            return COLLECTIVE.around(call, original, *args, **kwargs)
        finally:
            _depth.now -= 1

    return collective


_tap = Tap(_install)
COLLECTIVE = Topic(Collective, _tap)
