"""Losses: what a loss function of torch's is given, before it computes.

Only the outermost call counts: `nn.CrossEntropyLoss` calls `functional.cross_entropy`, and Transformers' models do too.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published, switch

__all__ = ["LOSS", "LossCall"]

_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
)


@dataclass(slots=True)
class LossCall(Call):
    """`functional.<function>(input, target, ...)`."""

    function: str
    input: torch.Tensor
    target: torch.Tensor
    reduction: str
    ignore_index: int | None  # where the function has one


def _patch(patches: Patches) -> None:
    for name in _FUNCTIONS:
        patches.patch(functional, name, functools.partial(_loss, name=name), imported=True)


def _loss(original: Wrapped, name: str) -> Wrapped:
    signature = inspect.signature(original)
    compiling = torch.compiler.is_compiling  # before all else: dynamo must not read who listens

    def loss(*args: Any, **kwargs: Any) -> Any:
        if compiling() or switch.quiet or not LOSS.before or not published():
            return original(*args, **kwargs)
        call = _call(name, signature, args, kwargs)
        if call is None:
            return original(*args, **kwargs)
        return LOSS.around(call, original, *args, **kwargs)

    return loss


def _call(name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> LossCall | None:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None  # torch says what is wrong with it
    bound.apply_defaults()
    given = bound.arguments
    predicted, target = given["input"], given["target"]
    if not isinstance(predicted, torch.Tensor) or not isinstance(target, torch.Tensor):
        return None
    reduction, ignored = str(given["reduction"]), given.get("ignore_index")
    return LossCall(caller(), name, predicted, target, reduction, ignored)


LOSS = Topic(LossCall, Tap(_patch, lasting=True))
