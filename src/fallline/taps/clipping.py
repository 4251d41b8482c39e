"""Gradients that are clipped, by torch's functions or by any other that is tapped with `tap_clip`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, new, switch, thread

__all__ = ["CLIP", "ClipCall", "listed", "tap_clip"]


@dataclass(slots=True)
class ClipCall(Call):
    """These gradients are clipped. `result`: the norm that was measured, after the call."""

    parameters: Any  # a tensor, or a list of them
    how: str  # "norm" | "value"
    threshold: Any  # a number or a tensor
    result: Any = None


class _Nested:
    """A clip function that calls another is one clip."""

    inside = False


def _install(patches: Patches) -> None:
    utils = nn.utils.clip_grad
    for name, how, threshold in (
        ("clip_grad_norm_", "norm", "max_norm"),
        ("clip_grad_value_", "value", "clip_value"),
        ("clip_grads_with_norm_", "norm", "max_norm"),
    ):
        if not hasattr(utils, name):  # the halves are public from torch 2.6 on
            continue
        tap_clip(patches, utils, name, how, threshold, listed)
        original, tapped = getattr(nn.utils, name, None), getattr(utils, name)
        if original is not None and original is not tapped:
            setattr(nn.utils, name, tapped)
            patches.on_removal(functools.partial(setattr, nn.utils, name, original))


def listed(parameters: Any) -> tuple[Any, Any]:
    """What to hand on of a clip's first argument, and the tensors in it."""
    if isinstance(parameters, Tensor | list | tuple):
        return parameters, parameters
    tensors = list(parameters)
    # torch warns about an exhausted generator, so an empty one has to stay one
    return (tensors or (p for p in tensors)), tensors


def tap_clip(
    patches: Patches,
    owner: Any,
    name: str,
    how: str,
    threshold: str,
    tensors: Callable[[Any], tuple[Any, Any]],
    skipped: Callable[[dict[str, Any]], bool] = lambda kwargs: False,
) -> None:
    """Publish the calls of `owner.name(parameters, threshold, ...)` as clips.

    `tensors`: what to hand on, and which tensors that is, for the first argument; `skipped`: calls that are not clips, by
    their keywords.
    """

    compiling = torch.compiler.is_compiling

    def make(original: Wrapped) -> Wrapped:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or _Nested.inside or switch.quiet or (kwargs and skipped(kwargs)):
                return original(parameters, *args, **kwargs)
            if thread.ident != get_ident() and thread.keeps_out():
                return original(parameters, *args, **kwargs)
            parameters, held = tensors(parameters)
            call = new(ClipCall)
            call.frame, call.parameters, call.how = caller(), held, how
            call.threshold, call.result = args[0] if args else kwargs.get(threshold), None
            for handler in CLIP.before:
                handler(call)
            _Nested.inside = True
            try:
                call.result = result = original(parameters, *args, **kwargs)
            finally:
                _Nested.inside = False
            for handler in CLIP.after:
                handler(call)
            return result

        return clip

    patches.patch(owner, name, make, imported=True)


_tap = Tap(_install)
CLIP = Topic(ClipCall, _tap)
