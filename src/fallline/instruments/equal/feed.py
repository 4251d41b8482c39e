"""For a loop that makes its micro-batches itself: keeps what models and losses are given, and gives them all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fallline.instruments.equal.loaders import together
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import switch

__all__ = ["LOSSES", "feed_all", "keep_inputs"]

LOSSES = [n for n in functional.__all__ if "loss" in n or n in ("cross_entropy", "kl_div", "binary_cross_entropy")] if hasattr(functional, "__all__") else [
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "triplet_margin_loss", "gaussian_nll_loss",
]  # fmt: skip
Given = list[list[Any]]  # of each micro-batch, what each call was given


def _patch_calls(patches: Patches, change: Any) -> None:
    depth = [0]

    def make(original: Wrapped) -> Wrapped:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not depth[0] and torch.is_grad_enabled() and not switch.in_backward:
                args, kwargs = change(args, kwargs)
            depth[0] += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                depth[0] -= 1

        return call

    def loss(original: Wrapped) -> Wrapped:
        def function(*args: Any, **kwargs: Any) -> Any:
            if not depth[0] and torch.is_grad_enabled():
                args, kwargs = change(args, kwargs)
            return original(*args, **kwargs)

        return function

    patches.patch(nn.Module, "__call__", make)
    for name in LOSSES:
        if hasattr(functional, name):
            patches.patch(functional, name, loss, imported=True)


def keep_inputs(patches: Patches, backwards: Any) -> Given:
    """What is given from here on, in one list for each backward."""
    given: Given = []

    def keep(args: Any, kwargs: Any) -> Any:
        if backwards() < 0:  # an earlier update
            return args, kwargs
        while len(given) <= backwards():
            given.append([])
        given[backwards()].append(_kept((args, kwargs)))
        return args, kwargs

    _patch_calls(patches, keep)
    return given


def feed_all(patches: Patches, given: Given, now: Callable[[], bool] = lambda: True) -> None:
    """The calls of the first micro-batch get what all of them were given, one after another along the first dimension. `now`: the
    update is the one that is looked at."""
    place = [0]

    def feed(args: Any, kwargs: Any) -> Any:
        if not now():
            return args, kwargs
        number, place[0] = place[0], place[0] + 1
        if number >= len(given[0]):
            return args, kwargs
        whole = together([calls[number] for calls in given])
        return _filled((args, kwargs), whole)

    _patch_calls(patches, feed)


def _kept(thing: Any) -> Any:
    """Tensors that no parameter has a part in; None for everything else."""
    if isinstance(thing, Tensor):
        return None if thing.requires_grad else thing.detach().cpu().clone()
    if isinstance(thing, dict):
        return {name: _kept(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return tuple(_kept(value) for value in thing)
    return None


def _filled(now: Any, whole: Any) -> Any:
    if whole is None:
        return now
    if isinstance(now, Tensor):
        return whole.to(now.device, now.dtype)
    if isinstance(now, dict):
        return {name: _filled(value, whole.get(name)) for name, value in now.items()}
    if isinstance(now, list | tuple):
        return type(now)(_filled(a, b) for a, b in zip(now, whole, strict=True))
    return now
