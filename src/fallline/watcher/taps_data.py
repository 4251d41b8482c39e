"""Taps on data: epochs and batches of loaders, samplers that are told the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

if TYPE_CHECKING:
    from fallline.watcher.session import Session
    from fallline.watcher.taps import Taps

__all__ = ["install"]

Wrapped = Callable[..., Any]


def install(taps: Taps) -> None:
    session = taps.session
    taps.patch(DataLoader, "__iter__", lambda original: _iter(session, original))
    taps.patch(_BaseDataLoaderIter, "__next__", lambda original: _next(session, original))
    taps.patch(DistributedSampler, "__init__", lambda original: _sampler(session, original))
    taps.patch(DistributedSampler, "set_epoch", lambda original: _set_epoch(session, original))


def _iter(session: Session, original: Wrapped) -> Wrapped:
    def __iter__(self: Any) -> Any:
        iterator = original(self)
        if not session.off:
            session.safely(session.epoch, self, iterator)
        return iterator

    return __iter__


def _next(session: Session, original: Wrapped) -> Wrapped:
    def __next__(self: Any) -> Any:
        if session.off:
            return original(self)
        return session.batch(original, self)

    return __next__


def _sampler(session: Session, original: Wrapped) -> Wrapped:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not session.off:
            session.safely(session.sampler_made, self)

    return __init__


def _set_epoch(session: Session, original: Wrapped) -> Wrapped:
    def set_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.off:
            session.safely(session.sampler_epoch, self)
        return original(self, *args, **kwargs)

    return set_epoch
