"""Taps on torch: every call that a training loop is made of passes through here on its way, and is told to the session.

A tap calls what it stands in front of with exactly the arguments it got, and returns exactly what that returned.
Whatever goes wrong in our own part is swallowed by the session. Taps are put in place before the script's own
imports run, or by `fallline.watch`, and taken away again by `remove`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fallline.watcher.patches import Patches, Wrapped
from fallline.watcher.replay import Reached

if TYPE_CHECKING:
    from fallline.watcher.session import Session

__all__ = ["Taps"]

# What comes after the tensors in `tensor.backward(...)` and in `torch.autograd.backward(tensors, ...)`.
_METHOD = ("gradient", "retain_graph", "create_graph", "inputs")
_FUNCTION = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


class Taps(Patches):
    """The taps of one session. `install` and `remove` may be called once each."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def install(self, *, rebind: bool = False) -> None:
        """Put the taps in place. `rebind`: also where a module has already imported a function by name."""
        from fallline.watcher import taps_data, taps_model, taps_sync

        self._backward()
        self._optimizer()
        self._clip(rebind)
        self._scaler()
        self._schedulers()
        taps_model.install(self)
        taps_data.install(self)
        taps_sync.install(self)
        self.session.by_hand.install(self)
        self.session.owners.install(self)

    # -- backward ----------------------------------------------------------------------------------------------

    def _backward(self) -> None:
        session = self.session

        def method(original: Wrapped) -> Wrapped:
            def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    raise Reached(self)
                if session.off:
                    return original(self, *args, **kwargs)
                return session.backward(original, _METHOD, self, self, args, kwargs)

            return backward

        def function(original: Wrapped) -> Wrapped:
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    raise Reached(
                        tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
                    )
                if session.off or session.in_backward:
                    return original(tensors, *args, **kwargs)
                first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
                return session.backward(original, _FUNCTION, tensors, first, args, kwargs)

            return backward

        def gradients(original: Wrapped) -> Wrapped:
            def grad(*args: Any, **kwargs: Any) -> Any:
                if not session.off:
                    session.safely(session.gradients_taken)
                return original(*args, **kwargs)

            return grad

        self.patch(torch.Tensor, "backward", method)
        self.patch(torch.autograd, "backward", function)
        self.patch(torch.autograd, "grad", gradients)

    # -- optimizer ---------------------------------------------------------------------------------------------

    def _optimizer(self) -> None:
        session = self.session

        self._undo.append(register_optimizer_step_pre_hook(session.before_step).remove)
        self._undo.append(register_optimizer_step_post_hook(session.after_step).remove)

        def zero_grad(original: Wrapped) -> Wrapped:
            def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    return None
                if not session.off and not session.routine.expected("zero_grad", self, 2):
                    session.safely(session.zero_grad, self)
                return original(self, *args, **kwargs)

            return zero_grad

        def init(original: Wrapped) -> Wrapped:
            def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
                original(self, *args, **kwargs)
                if not session.off:
                    session.safely(session.optimizer_made, self)

            return __init__

        def add_param_group(original: Wrapped) -> Wrapped:
            # the constructor calls it, too
            def add_param_group(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
                if not session.off:
                    session.safely(session.parameters_added)
                return original(self, *args, **kwargs)

            return add_param_group

        self.patch(Optimizer, "zero_grad", zero_grad)
        self.patch(Optimizer, "add_param_group", add_param_group)
        self.patch(Optimizer, "__init__", init)

    # -- clipping ----------------------------------------------------------------------------------------------

    def _clip(self, rebind: bool) -> None:
        session = self.session

        def tap(how: str, threshold: str) -> Callable[[Wrapped], Wrapped]:
            def make(original: Wrapped) -> Wrapped:
                def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                    if session.off or session.in_clip:
                        return original(parameters, *args, **kwargs)
                    if not isinstance(parameters, torch.Tensor | list | tuple):
                        listed = list(parameters)
                        # torch warns about an exhausted generator, so an empty one has to stay one
                        parameters = listed or (p for p in listed)
                    limit = args[0] if args else kwargs.get(threshold)
                    return session.clip(
                        lambda: original(parameters, *args, **kwargs), parameters, how, limit
                    )

                return clip

            return make

        utils = nn.utils.clip_grad
        norm, value = tap("norm", "max_norm"), tap("value", "clip_value")
        for name, make in (
            ("clip_grad_norm_", norm),
            ("clip_grad_value_", value),
            ("clip_grads_with_norm_", norm),
        ):
            if not hasattr(utils, name):  # the halves are public from torch 2.6 on
                continue
            self.patch(utils, name, make, rebind=rebind)
            original, tapped = getattr(nn.utils, name, None), getattr(utils, name)
            if original is not None and original is not tapped:
                setattr(nn.utils, name, tapped)
                self._undo.append(functools.partial(setattr, nn.utils, name, original))
        self._clip_by_engine(rebind)

    def _clip_by_engine(self, rebind: bool) -> None:
        """`fallline.clip_grad_norm_` is a clip like torch's; it also takes models and optimizers."""
        from fallline.engine import clipping
        from fallline.engine.gradients import Parameters

        session = self.session

        def make(original: Wrapped) -> Wrapped:
            def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                if session.off or session.in_clip or kwargs.get("per", "all") != "all":
                    return original(parameters, *args, **kwargs)
                if not isinstance(parameters, torch.Tensor | nn.Module | Optimizer):
                    parameters = list(parameters)
                limit = args[0] if args else kwargs.get("max_norm")
                return session.clip(
                    lambda: original(parameters, *args, **kwargs),
                    Parameters.of(parameters).tensors,
                    "norm",
                    limit,
                )

            return clip

        self.patch(clipping, "clip_grad_norm_", make, rebind=rebind)

    # -- loss scaling ------------------------------------------------------------------------------------------

    def _scaler(self) -> None:
        session = self.session
        scaler_class = torch.amp.grad_scaler.GradScaler

        def scale(original: Wrapped) -> Wrapped:
            def scale(self: Any, outputs: Any) -> Any:
                scaled = original(self, outputs)
                if not session.off and self._enabled:
                    session.safely(session.scaled, self, outputs)
                return scaled

            return scale

        def unscale(original: Wrapped) -> Wrapped:
            def unscale_(self: Any, optimizer: Any) -> Any:
                # told first: torch raises on a second unscale_, and that is what the finding is about
                told = not session.off and self._enabled and session.scaler_stepping is None
                if told and not session.routine.expected("unscale", self, 2):
                    session.safely(session.unscale, self, optimizer)
                return original(self, optimizer)

            return unscale_

        def step(original: Wrapped) -> Wrapped:
            def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    return None
                if session.off or not self._enabled:
                    return original(self, optimizer, *args, **kwargs)
                return session.scaler_step(
                    lambda: original(self, optimizer, *args, **kwargs), self, optimizer
                )

            return step

        def update(original: Wrapped) -> Wrapped:
            def update(self: Any, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    return None
                told = not session.off and self._enabled
                if told and not session.routine.expected("scaler_update", self, 2):
                    session.safely(session.scaler_update, self)
                return original(self, *args, **kwargs)

            return update

        for name, make in (
            ("scale", scale),
            ("unscale_", unscale),
            ("step", step),
            ("update", update),
        ):
            self.patch(scaler_class, name, make)

    # -- schedulers --------------------------------------------------------------------------------------------

    def _schedulers(self) -> None:
        session = self.session

        def step(original: Wrapped) -> Wrapped:
            def step(self: Any, *args: Any, **kwargs: Any) -> Any:
                if session.replaying:
                    return None
                if session.off or session.in_scheduler:
                    return original(self, *args, **kwargs)
                session.in_scheduler = True
                try:
                    if not session.routine.expected("scheduler_step", self, 2):
                        session.safely(session.scheduler_step, self, args, kwargs)
                    return original(self, *args, **kwargs)
                finally:
                    session.in_scheduler = False

            return step

        def quietly(original: Wrapped) -> Wrapped:
            # constructors set the first learning rate through step(); that is not the user's step
            def init(self: Any, *args: Any, **kwargs: Any) -> Any:
                outer, session.in_scheduler = session.in_scheduler, True
                try:
                    return original(self, *args, **kwargs)
                finally:
                    session.in_scheduler = outer

            return init

        classes = {
            c
            for c in vars(lr_scheduler).values()
            if isinstance(c, type) and c.__module__ == lr_scheduler.__name__
        }
        for scheduler in sorted(classes, key=lambda c: c.__name__):
            if not (
                issubclass(scheduler, lr_scheduler.LRScheduler)
                or scheduler.__name__ == "ReduceLROnPlateau"
            ):
                continue
            if "step" in scheduler.__dict__:
                self.patch(scheduler, "step", step)
            if "__init__" in scheduler.__dict__:
                self.patch(scheduler, "__init__", quietly)
