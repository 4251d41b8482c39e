"""Waits for a device: `.item()`, `.cpu()` and their kin from the user's own lines, on tensors that live on an accelerator."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from fallline.taps.frames import direct, is_user_file
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published

__all__ = ["WAIT", "Wait"]

_WAITS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
_SHOWN = {"__float__": "item", "__int__": "item", "__bool__": "bool"}


@dataclass(slots=True)
class Wait(Call):
    """The host waits for the device here. Only before."""

    what: str  # "item" | "cpu" | "tolist" | "bool"


def _install(patches: Patches) -> None:
    if not torch.cuda.is_available():
        return  # nothing here can wait for a device, and Adam alone asks for .item() once per parameter
    for name in _WAITS:
        original = getattr(torch.Tensor, name)
        if name in torch.Tensor.__dict__:
            patches.patch(torch.Tensor, name, functools.partial(_wait, name))
        else:  # a method of the C++ base: the class gets one of its own, and loses it again
            setattr(torch.Tensor, name, _wait(name, original))
            patches.on_removal(functools.partial(delattr, torch.Tensor, name))


def _wait(name: str, original: Wrapped) -> Wrapped:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda and is_user_file((frame := direct()).f_code.co_filename) and published():
            call = Wait(frame, _SHOWN.get(name, name))
            for handler in WAIT.before:
                handler(call)
        return original(self, *args, **kwargs)

    wait.__name__, wait.__qualname__, wait.__doc__ = name, f"Tensor.{name}", original.__doc__
    return wait


_tap = Tap(_install)
WAIT = Topic(Wait, _tap)
