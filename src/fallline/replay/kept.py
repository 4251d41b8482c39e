"""What the user's functions change besides computing a loss, when a replay calls them once more: put back afterwards.

A counter in `self`, a history that is appended to, a global: the names of the user's frames, the attributes of the user's own
objects and of modules, and the lists and dictionaries among them. Loggers are silent meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from fallline.taps.frames import is_user_file, user_frames

__all__ = ["nothing_changed"]

_MISSING: Any = object()
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
MOST_OBJECTS = 20_000
# Where a replayed batch must not be logged a second time: module, class, how the names of its methods begin.
_LOGGERS = (
    ("lightning.pytorch.core.module", "LightningModule", ("log",)),
    ("pytorch_lightning.core.module", "LightningModule", ("log",)),
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_",)),
    ("tensorboardX.writer", "SummaryWriter", ("add_",)),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
)


@contextlib.contextmanager
def nothing_changed(models: Iterable[nn.Module]) -> Iterator[None]:
    """Around a replay: names, attributes and collections of the user's are afterwards what they were."""
    restore = [_keep_dict(frame.f_globals) for frame in _by_globals()]
    things = [v for f in user_frames() for v in (*f.f_locals.values(), *f.f_globals.values())]
    seen: set[int] = set()
    for thing in (*things, *(m for root in models for m in root.modules())):
        if id(thing) in seen or len(seen) > MOST_OBJECTS:
            continue
        seen.add(id(thing))
        restore += _keep_value(thing)
        if isinstance(thing, nn.Module) or _is_users(type(thing)):
            restore += _keep_object(thing)
    try:
        with _silent_loggers():
            yield
    finally:
        for put_back in restore:
            put_back()


def _by_globals() -> Iterable[Any]:
    return {id(f.f_globals): f for f in user_frames()}.values()


def _is_users(kind: type) -> bool:
    """A class that the user wrote."""
    module = sys.modules.get(kind.__module__)
    path = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or (path is not None and is_user_file(path))


def _keep_object(thing: Any) -> list[Callable[[], None]]:
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is not dict:
        return []
    skipped = _OF_TORCH if isinstance(thing, nn.Module) else frozenset()
    kept = [_keep_dict(attributes, skipped)]
    for name, value in list(attributes.items()):
        if name not in skipped:
            kept += _keep_value(value)
    return kept


def _keep_value(value: Any) -> list[Callable[[], None]]:
    kind = type(value)
    if kind is dict:
        return [_keep_dict(value)]
    if kind in (list, set, deque):
        return [_keep_collection(value)]
    return []


def _keep_dict(values: dict[str, Any], skipped: frozenset[str] = frozenset()) -> Callable[[], None]:
    before = {k: v for k, v in values.items() if k not in skipped}

    def put_back() -> None:
        for key in [k for k in values if k not in before and k not in skipped]:
            del values[key]
        for key, value in before.items():
            if values.get(key, _MISSING) is not value:
                values[key] = value

    return put_back


def _keep_collection(values: Any) -> Callable[[], None]:
    before = list(values)

    def put_back() -> None:
        now = list(values)
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            values.clear()
            (values.update if isinstance(values, set) else values.extend)(before)

    return put_back


@contextlib.contextmanager
def _silent_loggers() -> Iterator[None]:
    patched: list[tuple[Any, str, Any]] = []
    for module, name, begins in _LOGGERS:
        cls = getattr(sys.modules.get(module), name, None)
        for method in [m for m in vars(cls) if m.startswith(begins)] if cls is not None else ():
            patched.append((cls, method, vars(cls)[method]))
            setattr(cls, method, lambda self, *args, **kwargs: None)
    try:
        yield
    finally:
        for cls, method, original in patched:
            setattr(cls, method, original)
