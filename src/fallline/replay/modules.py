"""Modules while they run: which one it is, by its path, and a user's own model inside what wraps it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from fallline.replay.tensors import storage

__all__ = ["Modules", "name_in", "unwrap", "variables", "wrapper_of"]


def wrapper_of(module: nn.Module) -> str | None:
    """ "ddp", "fsdp1" or "fsdp2" when this module is wrapped so."""
    kind: Any = type(module)
    found = _wrapper(kind)
    if found == "compiled":
        inner = getattr(module, "_orig_mod", None)
        return wrapper_of(inner) if isinstance(inner, nn.Module) else None
    return found


@functools.lru_cache(maxsize=1024)
def _wrapper(kind: Any) -> str | None:
    if issubclass(kind, nn.parallel.DistributedDataParallel):
        return "ddp"
    names = {
        "FullyShardedDataParallel": "fsdp1",
        "FSDPModule": "fsdp2",
        "OptimizedModule": "compiled",
    }
    return next((names[base.__name__] for base in kind.__mro__ if base.__name__ in names), None)


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own model inside DDP, FSDP1, DataParallel, DeepSpeed's engine and torch.compile."""
    while True:
        inner = None
        if (
            isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel)
            or wrapper_of(module) == "fsdp1"
            or type(module).__name__ == "DeepSpeedEngine"
        ):
            inner = getattr(module, "module", None)
        elif type(module).__name__ == "OptimizedModule":
            inner = getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def name_in(frame: FrameType, module: nn.Module) -> str | None:
    """What the code that runs in this frame calls a module: `decoder`, `model.head`, or `head` for `self.head`."""
    for scope in (variables(frame), frame.f_globals):
        for name, value in list(scope.items()):
            if value is module:
                return name
        for name, value in list(scope.items()):
            inside = _path(value, module)
            if inside is not None:
                return inside if name == "self" else f"{name}.{inside}"
    return None


def variables(frame: FrameType) -> dict[str, Any]:
    """A function's variables. Before Python 3.13 the frame keeps the copy it makes of them, and with it every tensor in it,
    until the function ends: the copy is emptied, unless the script holds it too, from `locals()`. (The variables themselves are elsewhere.)"""
    there = frame.f_locals
    found = dict(there)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        if sys.getrefcount(there) <= 3:  # the frame, `there`, and the argument
            there.clear()
    return found


def _path(holder: Any, module: nn.Module) -> str | None:
    if isinstance(holder, nn.Module):
        return next((path for path, m in holder.named_modules() if m is module), None)
    held = getattr(holder, "__dict__", None)
    if not isinstance(held, dict) or isinstance(holder, type | ModuleType):
        return None
    return next((name for name, value in held.items() if value is module), None)


class Modules:
    """Which module is running, by path; and which stretch of the graph each of them made."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self.names: dict[int, str] = {}
        self.tensors: dict[int, tuple[str, str]] = {}
        for root in roots:
            for name, module in root.named_modules():
                self.names.setdefault(id(module), name)
            for name, parameter in root.named_parameters():
                self.tensors.setdefault(storage(parameter), ("parameter", name))
            for name, buffer in root.named_buffers():
                self.tensors.setdefault(storage(buffer), ("buffer", name))
        self._stack: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int, str]] = []

    @classmethod
    def around(
        cls, called: list[nn.Module], known: list[nn.Module], named: Iterable[nn.Module] = ()
    ) -> Modules:
        """Paths as in the whole model, also where only its parts are called, as Lightning's `training_step` does.

        `named`: models that the user's names stand for; one of which several parts are called is the whole.
        """
        parts = set(map(id, called))

        def inside(model: nn.Module) -> int:
            return sum(id(m) in parts and m is not model for m in model.modules())

        whole = [m for m in known if inside(m)]
        whole += [m for m in named if inside(m) > 1]
        return cls((*whole, *called))

    @contextmanager
    def followed(self) -> Iterator[None]:
        handles = [
            global_hooks.register_module_forward_pre_hook(self._enter),
            global_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append((id(module), torch.autograd._get_sequence_nr()))  # type: ignore[attr-defined]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self._stack:
            key, started = self._stack.pop()
            if key == id(module):
                name = self.names.get(key)
                if name is not None:
                    self._spans.append((started, torch.autograd._get_sequence_nr(), name))  # type: ignore[attr-defined]
                return

    @property
    def current(self) -> str | None:
        return next(
            (self.names[key] for key, _ in reversed(self._stack) if key in self.names), None
        )

    def of_node(self, number: int) -> str | None:
        """The innermost module in which this node of the graph was made."""
        spans = [s for s in self._spans if s[0] <= number < s[1]]
        return min(spans, key=lambda s: s[1] - s[0])[2] if spans else None
