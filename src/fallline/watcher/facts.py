"""Small questions to torch objects that several taps ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fallline.events import AutocastOff, Backward
from fallline.taps.frames import entry

__all__ = [
    "HalfWatch",
    "autocast_dtype",
    "by_engine",
    "by_framework",
    "first_tensor",
    "inner_of",
    "leftover_of",
    "length_of",
    "modules_in",
    "passed_on",
    "steps_by_hand",
]


def autocast_dtype(device: str) -> str | None:
    """ "float16", "bfloat16" or "off"."""
    try:
        if not torch.is_autocast_enabled(device):
            return "off"
        return str(torch.get_autocast_dtype(device))[6:]
    except RuntimeError:  # a device without autocast
        return None


def by_framework(event: Backward, framework: str) -> None:
    """Take the framework's own division out of what is known about a loss; what is left is the user's."""
    count = _accumulation_of(framework)
    if framework == "accelerate" and count == 1:
        _by_trainer(event)
        return
    event.normalised = framework
    own = (event.divisor or 1.0) / (count or 1)
    event.divisor = event.divided = None
    if count is not None and count > 1:
        event.window = count
        event.divided = own > 1.0001
        event.divisor = own if event.divided else None


def by_engine(event: Backward, framework: str, window: int) -> None:
    """What is known about the loss is what it was when the user gave it to an engine that divides by `window`."""
    event.normalised = framework
    event.window = window if window > 1 else None
    event.divided = bool(event.divided and (event.divisor or 1.0) > 1.0001) if window > 1 else None
    event.divisor = event.divisor if event.divided else None


def _by_trainer(event: Backward) -> None:
    """The Hugging Face Trainer divides where it believes that nobody else did, and makes its Accelerator not divide."""
    step = _above("training_step", f"{os.sep}transformers{os.sep}")
    if step is None:
        return
    if event.divided is False:
        event.driver = "transformers"
    elif step.f_locals.get("loss_is_scaled_for_ga") is False:
        count = getattr(step.f_locals.get("self"), "current_gradient_accumulation_steps", 1)
        own = (event.divisor or 1.0) / count
        if count > 1 and abs(own - count) < 1e-3 * count:
            event.normalised, event.window, event.divisor = "transformers", count, own


def _accumulation_of(framework: str) -> int | None:
    """How many micro-batches Accelerate or Lightning accumulates, from the frames that call backward."""
    frame: Any = sys._getframe()
    while frame is not None:
        if framework in frame.f_code.co_filename and frame.f_code.co_name == "backward":
            # an Accelerator, or a Strategy of Lightning
            caller = frame.f_locals.get("self")
            trainer = getattr(getattr(caller, "lightning_module", None), "_trainer", None)
            count = getattr(caller, "gradient_accumulation_steps", None)
            count = count or getattr(trainer, "accumulate_grad_batches", None)
            if isinstance(count, int):
                return count
        frame = frame.f_back
    return None


def passed_on(framework: str) -> bool:
    """Whether Lightning only passes a backward on that the user's own line asks for: `self.manual_backward(loss)`."""
    return framework == "lightning" and _above("manual_backward") is not None


def _above(function: str, folder: str = "") -> Any:
    """The frame of this function, of a file below this folder, among those that are being executed; None: it is not."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == function and folder in frame.f_code.co_filename:
            return frame
        frame = frame.f_back
    return None


def first_tensor(output: Any) -> Tensor | None:
    """A tensor with a graph in what a model returned."""
    if isinstance(output, Tensor):
        return output if output.grad_fn is not None else None
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, list | tuple):
        return None
    for item in output:
        found = first_tensor(item)
        if found is not None:
            return found
    return None


def inner_of(optimizer: Any) -> Any:
    """The torch optimizer inside a framework's wrapper: Accelerate's, Fabric's, anyone's that shares its parameter groups."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        groups = getattr(optimizer, "param_groups", None)
        if isinstance(groups, list) and groups is not getattr(inner, "param_groups", None):
            break  # an optimizer of its own that keeps another one
        optimizer = inner
    return optimizer


def steps_by_hand(frame: FrameType | None, optimizer: torch.optim.Optimizer) -> bool:
    """The user's own line calls `step` of a framework's wrapper around this optimizer, which only passes it on."""
    below = entry(frame)
    if below is None or below.f_code.co_name != "step":
        return False
    wrapper = below.f_locals.get("self")
    return isinstance(getattr(wrapper, "param_groups", None), list) and (
        inner_of(wrapper) is optimizer
    )


def length_of(loader: Any) -> int | None:
    """How many batches a pass has, where asking is free of side effects."""
    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:
        return None


def leftover_of(loader: Any) -> int | None:
    """How many samples the last batch of a pass has, where it is smaller than the others."""
    batches = getattr(loader, "batch_sampler", None)
    size, dropped = getattr(batches, "batch_size", None), getattr(batches, "drop_last", None)
    if dropped is not False or not isinstance(size, int) or length_of(loader) is None:
        return None
    try:
        samples = len(batches.sampler)  # type: ignore[union-attr]
    except Exception:
        return None
    return samples % size or None if samples > size else None


def modules_in(function: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a checkpointed function runs, as far as they can be seen on it."""
    if isinstance(function, nn.Module):
        return [function]
    owner = getattr(function, "__self__", None)
    found = [owner] if isinstance(owner, nn.Module) else []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, nn.Module):
            found.append(value)
    return found


class HalfWatch(TorchFunctionMode):
    """In a block where autocast is turned off: is anything computed in half precision there?"""

    _CASTS = frozenset(
        {
            "float",
            "double",
            "to",
            "type",
            "detach",
            "__get__",
            "dim",
            "size",
            "numel",
            "is_floating_point",
        }
    )

    def __init__(self, event: AutocastOff) -> None:
        super().__init__()
        self.event = event

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in self._CASTS and any(
            isinstance(a, Tensor) and a.dtype in (torch.float16, torch.bfloat16) for a in args
        ):
            self.event.half = True
        return func(*args, **(kwargs or {}))
