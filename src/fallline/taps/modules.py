"""Modules: made, put into each other, wrapped for several ranks, and called.

FORWARD is the call of a whole model: a module with parameters that is called from outside of any model. MODULE_CALL is every call of
every module, which costs more, so its patch is only there for those who ask.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import (
    Call,
    Tap,
    Topic,
    announced,
    new,
    published,
    published_at_rest,
    switch,
    thread,
)
from fallline.taps.tracing import faked

__all__ = [
    "FORWARD",
    "MODULE_CALL",
    "MODULE_MADE",
    "MODULE_REGISTERED",
    "WRAPPED",
    "ForwardCall",
    "ModuleCall",
    "ModuleMade",
    "ModuleRegistered",
    "ModuleWrapped",
]

_CHOICE = ("_compiled_call_impl", "_call_impl")
_MOST = 1_000


@dataclass(slots=True)
class ForwardCall(Call):
    """A model is called. `output`: what it returned, after the call."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None


@dataclass(slots=True)
class ModuleCall(Call):
    """Any module is called, a whole model too, inside of its FORWARD. `after` is called also if it raises."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    raised: bool = False


@dataclass(slots=True)
class ModuleMade(Call):
    """`nn.Module.__init__` has run: the module's own constructor most likely has not ended yet. Only after."""

    module: nn.Module


@dataclass(slots=True)
class ModuleRegistered(Call):
    """`model.head = nn.Linear(...)`. Only before: `module` still holds the old one."""

    module: nn.Module
    name: str
    new: nn.Module


@dataclass(slots=True)
class ModuleWrapped(Call):
    """A model was put into DistributedDataParallel. Only after."""

    module: nn.Module


def _patch_call(patches: Patches) -> None:
    if MODULE_CALL.heard:
        patches.patch(nn.Module, "__call__", _every)
    if FORWARD.heard:
        patches.patch(nn.Module, "__call__", _model)


def _patch_init(patches: Patches) -> None:
    patches.patch(nn.Module, "__init__", _init)


def _hook_registration(patches: Patches) -> None:
    hook = global_hooks.register_module_module_registration_hook(_registered)
    patches.on_removal(hook.remove)


def _patch_wrapper(patches: Patches) -> None:
    patches.patch(nn.parallel.DistributedDataParallel, "__init__", announced(WRAPPED))


class _Hollow:
    """Which modules hold no parameters, such as losses. What they call may be a model."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}

    def meet(self, module: nn.Module) -> tuple[weakref.ref[nn.Module], bool]:
        """A module that is not known yet."""
        if len(self.known) > _MOST:
            self.known.clear()
        hollow = next(module.parameters(), None) is None
        self.known[id(module)] = met = (weakref.ref(module), hollow)
        return met


_hollow = _Hollow()


def _model(original: Wrapped) -> Wrapped:
    # Called for every module of every forward pass: the way past it must stay as short as it can be. in_backward: a
    # checkpointed block is computed again.
    state = switch
    # dynamo knows this one, and leaves out what follows: had it read the switch, it would compile again whenever that changes
    compiling = torch.compiler.is_compiling

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling() or state.inside or state.quiet or state.in_backward:
            return original(self, *args, **kwargs)
        return _forward(original, self, args, kwargs)

    def instead(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling() or state.inside or state.quiet or state.in_backward:
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        return _forward(original, self, args, kwargs)

    # torch's own __call__ only chooses between these two: doing that here saves calling it
    code = getattr(original, "__code__", None)
    return instead if code is not None and code.co_names == _CHOICE else __call__


def _forward(original: Wrapped, module: nn.Module, args: Any, kwargs: Any) -> Any:
    known = _hollow.known.get(id(module))
    if known is None or known[0]() is not module:
        known = _hollow.meet(module)
    if known[1] or faked() or (thread.ident != get_ident() and thread.keeps_out()):
        return original(module, *args, **kwargs)
    call = new(ForwardCall)
    call.frame, call.module = caller(), module
    call.args, call.kwargs, call.output = args, kwargs, None
    switch.inside = True
    try:
        for handler in FORWARD.before:
            handler(call)
        call.output = output = original(module, *args, **kwargs)
        for handler in FORWARD.after:
            handler(call)
        return output
    finally:
        switch.inside = False


def _every(original: Wrapped) -> Wrapped:
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not published():
            return original(self, *args, **kwargs)
        call = ModuleCall(caller(), self, args, kwargs)
        for handler in MODULE_CALL.before:
            handler(call)
        try:
            call.output = output = original(self, *args, **kwargs)
            return output
        except BaseException:
            call.raised = True
            raise
        finally:
            for after in MODULE_CALL.after:
                after(call)

    return __call__


def _init(original: Wrapped) -> Wrapped:
    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not switch.inside and published_at_rest():
            call = ModuleMade(caller(), self)
            for handler in MODULE_MADE.after:
                handler(call)

    return __init__


def _registered(module: nn.Module, name: str, new: Any) -> None:
    if isinstance(new, nn.Module) and published_at_rest():
        call = ModuleRegistered(caller(), module, name, new)
        for handler in MODULE_REGISTERED.before:
            handler(call)


_calls = Tap(_patch_call, variants=True, hot=True)
FORWARD = Topic(ForwardCall, _calls)
MODULE_CALL = Topic(ModuleCall, _calls)
MODULE_MADE = Topic(ModuleMade, Tap(_patch_init))
MODULE_REGISTERED = Topic(ModuleRegistered, Tap(_hook_registration))
WRAPPED = Topic(ModuleWrapped, Tap(_patch_wrapper))
