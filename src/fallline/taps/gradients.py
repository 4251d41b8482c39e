"""`tensor.grad`, read or written by a line of the user's own: `p.grad.div_(k)`, `p.grad = None`, `p.grad.norm()`.

`Tensor.grad` is a slot of the C++ class; a property is in front of it while someone listens, which makes each access
slower. So listeners leave as soon as they have seen enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fallline.taps.frames import direct, is_user_file
from fallline.taps.patches import Patches
from fallline.taps.tap import Call, Tap, Topic, published, switch

__all__ = ["GRADIENT_READ", "GRADIENT_WRITTEN", "GradientRead", "GradientWritten", "gradient_of"]

_SLOT: Any = torch._C.TensorBase.__dict__["grad"]
# Reading `.grad` this way is not published.
gradient_of: Any = _SLOT.__get__


@dataclass(slots=True)
class GradientRead(Call):
    """Only before."""

    tensor: Any


@dataclass(slots=True)
class GradientWritten(Call):
    """Only before."""

    tensor: Any
    value: Any


class _Slot(property):
    """A property that answers like the C++ slot it is in front of: torch's compiler asks it who it is."""

    __objclass__ = torch._C.TensorBase
    __name__ = "grad"


def _get(tensor: Any) -> Any:
    if switch.quiet:
        return gradient_of(tensor)
    frame = direct()
    if is_user_file(frame.f_code.co_filename) and published():
        call = GradientRead(frame, tensor)
        for handler in GRADIENT_READ.before:
            handler(call)
    return gradient_of(tensor)


def _set(tensor: Any, value: Any) -> None:
    if switch.quiet:
        _SLOT.__set__(tensor, value)
        return
    frame = direct()
    if is_user_file(frame.f_code.co_filename) and published():
        call = GradientWritten(frame, tensor, value)
        for handler in GRADIENT_WRITTEN.before:
            handler(call)
    _SLOT.__set__(tensor, value)


def _delete(tensor: Any) -> None:
    _SLOT.__delete__(tensor)


def _install(patches: Patches) -> None:
    slot = _Slot(_get, _set, _delete, _SLOT.__doc__)
    torch.Tensor.grad = slot  # type: ignore[assignment]

    def remove() -> None:
        if torch.Tensor.__dict__.get("grad") is slot:
            del torch.Tensor.grad

    patches.on_removal(remove)


_tap = Tap(_install)
GRADIENT_READ = Topic(GradientRead, _tap)
GRADIENT_WRITTEN = Topic(GradientWritten, _tap)
