"""Taps on modules: the calls of whole models, train and eval, zero_grad, checkpointing, anomaly mode, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch import nn

if TYPE_CHECKING:
    from fallline.watcher.session import Session
    from fallline.watcher.taps import Taps

__all__ = ["install"]

Wrapped = Callable[..., Any]
_CHOICE = ("_compiled_call_impl", "_call_impl")


def install(taps: Taps) -> None:
    session = taps.session
    taps.patch(nn.Module, "__call__", lambda original: _call(session, original))
    taps.patch(nn.Module, "train", lambda original: _train(session, original))
    taps.patch(nn.Module, "zero_grad", lambda original: _zero_grad(session, original))
    taps.patch(
        torch.utils.checkpoint, "checkpoint", lambda original: _checkpoint(session, original)
    )
    taps.patch(
        nn.parallel.DistributedDataParallel, "__init__", lambda original: _wrap(session, original)
    )
    anomaly = torch.autograd.anomaly_mode
    taps.patch(
        anomaly.detect_anomaly,
        "__enter__",
        lambda original: _told(session, original, session.anomaly),
    )
    taps.patch(anomaly.set_detect_anomaly, "__init__", lambda original: _anomaly(session, original))
    taps.patch(
        torch.amp.autocast_mode.autocast, "__enter__", lambda original: _autocast(session, original)
    )
    taps.patch(
        torch.amp.autocast_mode.autocast,
        "__exit__",
        lambda original: _autocast_exit(session, original),
    )


def _call(session: Session, original: Wrapped) -> Wrapped:
    # Called for every module of every forward pass: the way past it must stay as short as it can be. in_backward: a
    # checkpointed block is computed again.
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if session.inside or session.off or session.in_backward:
            return original(self, *args, **kwargs)
        return session.forward(original, self, args, kwargs)

    def instead(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if session.inside or session.off or session.in_backward:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        return session.forward(original, self, args, kwargs)

    # torch's own __call__ only chooses between these two: doing that here saves calling it
    code = getattr(original, "__code__", None)
    return instead if code is not None and code.co_names == _CHOICE else __call__


def _wrap(session: Session, original: Wrapped) -> Wrapped:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not session.off:
            session.safely(session.wrapped, self)

    return __init__


def _train(session: Session, original: Wrapped) -> Wrapped:
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        if session.off or session.in_mode:
            return original(self, mode)  # type: ignore[no-any-return]
        session.in_mode = True
        try:
            if not session.routine.expected("mode", self, 2, mode):
                session.safely(session.mode, self, mode)
            return original(self, mode)  # type: ignore[no-any-return]
        finally:
            session.in_mode = False

    return train


def _zero_grad(session: Session, original: Wrapped) -> Wrapped:
    def zero_grad(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if session.replaying:
            return None
        if not session.off and not session.routine.expected("zero_grad", self, 2):
            session.safely(session.zero_grad_of_model, self)
        return original(self, *args, **kwargs)

    return zero_grad


def _checkpoint(session: Session, original: Wrapped) -> Wrapped:
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.off:
            session.safely(session.checkpointed, function)
        return original(function, *args, **kwargs)

    return checkpoint


def _told(session: Session, original: Wrapped, handler: Callable[[], None]) -> Wrapped:
    def __enter__(self: Any) -> Any:
        if not session.off:
            session.safely(handler)
        return original(self)

    return __enter__


def _anomaly(session: Session, original: Wrapped) -> Wrapped:
    def __init__(self: Any, mode: bool, *args: Any, **kwargs: Any) -> None:
        original(self, mode, *args, **kwargs)
        if mode and not session.off:
            session.safely(session.anomaly)

    return __init__


def _autocast(session: Session, original: Wrapped) -> Wrapped:
    def __enter__(self: Any) -> Any:
        if not session.off and not self._enabled and torch.is_autocast_enabled(self.device):
            session.safely(session.autocast_off, self)
        return original(self)

    return __enter__


def _autocast_exit(session: Session, original: Wrapped) -> Wrapped:
    def __exit__(self: Any, *args: Any) -> Any:
        if not session.off and session.autocast_pending:
            session.safely(session.autocast_on_again, self)
        return original(self, *args)

    return __exit__
