"""Waits for a device: `.item()`, `.cpu()` and their kin from the user's own lines, on tensors that live on an accelerator."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fallline.events import Kind
from fallline.watcher.frames import is_user_file, locate, place
from fallline.watcher.source import over_parameters

if TYPE_CHECKING:
    from fallline.watcher.session import Session
    from fallline.watcher.taps import Taps

__all__ = ["install"]

_WAITS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
_SHOWN = {"__float__": "item", "__int__": "item", "__bool__": "bool"}
# Every iteration means every one of these; later ones say no more.
LOOKED_AT = 30


def install(taps: Taps) -> None:
    session = taps.session
    if not torch.cuda.is_available():
        return  # nothing here can wait for a device, and Adam alone asks for .item() once per parameter
    for name in _WAITS:
        original = getattr(torch.Tensor, name)
        if name in torch.Tensor.__dict__:
            taps.patch(torch.Tensor, name, functools.partial(_wait, session, name))
        else:  # a method of the C++ base: the class gets one of its own, and loses it again
            setattr(torch.Tensor, name, _wait(session, name, original))
            taps.on_removal(functools.partial(delattr, torch.Tensor, name))


def _wait(session: Session, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.off and session.steps < LOOKED_AT and self.is_cuda:
            frame = sys._getframe(1)
            if is_user_file(frame.f_code.co_filename):
                at = locate(frame.f_code, frame.f_lasti, frame.f_lineno)
                session.safely(_told, session, _SHOWN.get(name, name), at)
        return original(self, *args, **kwargs)

    wait.__name__, wait.__qualname__, wait.__doc__ = name, f"Tensor.{name}", original.__doc__
    return wait


def _told(session: Session, what: str, at: Any) -> None:
    session.emit(
        Kind.SYNC, place(4), what=what, device="cuda", per_parameter=over_parameters(at) or None
    )
