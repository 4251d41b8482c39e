"""Optimizers: made, given more parameters, stepped, and gradients cleared by them or by a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fallline.taps.frames import caller
from fallline.taps.parts import Whole
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import (
    Call,
    Pulse,
    Tap,
    Topic,
    announced,
    new,
    published,
    published_at_rest,
    switch,
    thread,
)

__all__ = [
    "CLOSURE",
    "OPTIMIZER_MADE",
    "PARAMETERS_ADDED",
    "STATE_LOADED",
    "STEP",
    "STEP_PART",
    "ZERO_GRAD",
    "ClosureCall",
    "OptimizerMade",
    "ParametersAdded",
    "StateLoaded",
    "StepCall",
    "StepPart",
    "ZeroGradCall",
    "hear_end",
    "joined",
]


@dataclass(slots=True)
class StepCall(Call):
    """`optimizer.step()`. Before and after are two objects: nothing of the first is kept if the step raises."""

    optimizer: Optimizer
    closure: bool = False  # the gradients are made inside: see CLOSURE


@dataclass(slots=True)
class StepPart(Call):
    """One of several steps that make up an update: before, for all but the first, whose update begins then; after, for each."""

    optimizer: Optimizer


@dataclass(slots=True)
class ClosureCall(Call):
    """The closure of a step is evaluated; an optimizer may do so many times (LBFGS)."""

    optimizer: Optimizer


@dataclass(slots=True)
class ZeroGradCall(Call):
    """`optimizer.zero_grad()` or `model.zero_grad()`."""

    owner: Optimizer | nn.Module
    to_none: bool  # not filled with zeros


@dataclass(slots=True)
class OptimizerMade(Call):
    """An optimizer was constructed. Only after."""

    optimizer: Optimizer


@dataclass(slots=True)
class ParametersAdded(Call):
    """`optimizer.add_param_group(...)`; constructors call it, too."""

    optimizer: Optimizer


@dataclass(slots=True)
class StateLoaded(Call):
    """`optimizer.load_state_dict(state)`. Only after."""

    optimizer: Optimizer
    state: Any


_whole = Whole()


@contextmanager
def joined() -> Iterator[None]:
    """The steps in here are one step, which ends with this block."""
    before = _whole.join()
    first = None
    try:
        yield
        first = _whole.first
    finally:
        _whole.part(before)
    if first is not None:
        _after_step(first[0], (), {}, first[1])


# Torch ignores what a hook behind a step returns: of all that takes three arguments and does nothing, this takes the least time.
_nothing: Any = slice


class _Hooks:
    """Torch's hooks around every step. While the switch rests, only the pulse's own is left, in front."""

    def __init__(self) -> None:
        self._before: Any = None  # what torch removes them by
        self._after: Any = None
        self._awaited: int | None = (
            None  # the optimizer whose step the pulse wants to hear the end of
        )

    def install(self, patches: Patches) -> None:
        self._before = register_optimizer_step_pre_hook(_before_step)
        self._after = register_optimizer_step_post_hook(_after_step)
        patches.on_removal(self._before.remove)
        patches.on_removal(self._after.remove)

    def rest(self, pulse: Pulse | None) -> None:
        alone = pulse is not None and _whole.plain
        _put(self._before, pulse.before if pulse is not None and alone else _before_step)
        _put(self._after, _nothing if alone else _after_step)

    def hear_end(self, optimizer: Optimizer) -> None:
        """The step that is about to be made: tell the pulse when it was."""
        self._awaited = id(optimizer)
        if _whole.plain:
            _put(self._after, self.ended)

    def ended(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A step was made, at rest."""
        if id(optimizer) != self._awaited:
            return
        self._awaited = None
        if _whole.plain:
            _put(self._after, _nothing)
        if switch.pulse is not None:
            switch.pulse.after(optimizer)


def _put(handle: Any, hook: Any) -> None:
    """In the place of the hook that is there. It stays the same entry, for torch may be going through them just now."""
    hooks = handle.hooks_dict_ref() if handle is not None else None
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = hook


_hooks = _Hooks()
hear_end = _hooks.hear_end
switch.hot.append(_hooks)


def _patch_zero_grad(patches: Patches) -> None:
    patches.patch(Optimizer, "zero_grad", _zero_grad)
    patches.patch(nn.Module, "zero_grad", _zero_grad)


def _patch_init(patches: Patches) -> None:
    patches.patch(Optimizer, "__init__", announced(OPTIMIZER_MADE))
    patches.patch(Optimizer, "__init__", _made)


def _patch_add_param_group(patches: Patches) -> None:
    patches.patch(Optimizer, "add_param_group", _add_param_group)


def _patch_load(patches: Patches) -> None:
    patches.patch(Optimizer, "load_state_dict", _load_state_dict)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """A hook of torch, in front of every step; what it returns replaces the arguments."""
    if not _whole.begins(optimizer):
        if _whole.first is not None and published():
            _publish_part(STEP_PART.before, optimizer)
        return None
    if switch.quiet or (thread.ident != get_ident() and thread.keeps_out()):
        pulse = switch.pulse
        if pulse is not None and thread.ident == get_ident() and not switch._silent:
            pulse.before(optimizer, args, kwargs)
        if _whole.joins:
            _whole.first = (optimizer, caller())
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None
    call = new(StepCall)
    call.frame, call.optimizer, call.closure = caller(), optimizer, callable(closure)
    if _whole.joins:
        _whole.first = (optimizer, call.frame)
    for handler in STEP.before:
        handler(call)
    if closure is None or not callable(closure) or not CLOSURE.heard:
        return None
    watched = _evaluated(closure, optimizer)
    if len(args) > 1:
        return (args[0], watched, *args[2:]), kwargs
    return args, {**kwargs, "closure": watched}


def _publish_part(handlers: tuple[Callable[[StepPart], Any], ...], optimizer: Optimizer) -> None:
    call = StepPart(caller(), optimizer)
    for handler in handlers:
        handler(call)


def _evaluated(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    def evaluated() -> Any:
        if switch.quiet:
            return closure()
        return CLOSURE.around(ClosureCall(caller(), optimizer), closure)

    return evaluated


def _after_step(
    optimizer: Optimizer, args: Any, kwargs: Any, here: FrameType | None = None
) -> None:
    """A hook of torch, behind every step. `here`: the frame it was called from, where that is known."""
    if not _whole.ends(optimizer):
        if _whole.first is not None and published():
            _publish_part(STEP_PART.after, optimizer)
        return
    if switch.quiet or (thread.ident != get_ident() and thread.keeps_out()):
        if switch.pulse is not None and thread.ident == get_ident() and not switch._silent:
            _hooks.ended(optimizer, args, kwargs)
        return
    call = new(StepCall)
    call.frame, call.optimizer, call.closure = here or caller(), optimizer, False
    for handler in STEP.after:
        handler(call)


def _zero_grad(original: Wrapped) -> Wrapped:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying:
            return None
        if switch.quiet or (thread.ident != get_ident() and thread.keeps_out()):
            return original(self, *args, **kwargs)
        call = new(ZeroGradCall)
        call.frame, call.owner = caller(), self
        call.to_none = args[0] if args else kwargs.get("set_to_none", True)
        for handler in ZERO_GRAD.before:
            handler(call)
        result = original(self, *args, **kwargs)
        for handler in ZERO_GRAD.after:
            handler(call)
        return result

    return zero_grad


def _add_param_group(original: Wrapped) -> Wrapped:
    def add_param_group(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not published_at_rest():
            return original(self, *args, **kwargs)
        call = ParametersAdded(caller(), self)
        return PARAMETERS_ADDED.around(call, original, self, *args, **kwargs)

    return add_param_group


def _made(original: Wrapped) -> Wrapped:
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _whole.made(self)

    return __init__


def _load_state_dict(original: Wrapped) -> Wrapped:
    def load_state_dict(self: Optimizer, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, state_dict, *args, **kwargs)
        if published_at_rest():
            call = StateLoaded(caller(), self, state_dict)
            for handler in STATE_LOADED.after:
                handler(call)
        return result

    return load_state_dict


_steps = Tap(_hooks.install)
STEP = Topic(StepCall, _steps)
STEP_PART = Topic(StepPart, _steps)
CLOSURE = Topic(ClosureCall, _steps)
ZERO_GRAD = Topic(ZeroGradCall, Tap(_patch_zero_grad, hot=True))
OPTIMIZER_MADE = Topic(OptimizerMade, Tap(_patch_init))
STATE_LOADED = Topic(StateLoaded, Tap(_patch_load))
PARAMETERS_ADDED = Topic(ParametersAdded, Tap(_patch_add_param_group))
