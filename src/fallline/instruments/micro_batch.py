"""One micro-batch of a running script, as a function that can be called again and again where its backward would begin."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from fallline.engine import rng
from fallline.errors import UsageError
from fallline.replay.again import as_it_was, prepare
from fallline.replay.capture import Capture, Gone, Weak
from fallline.replay.modules import unwrap

__all__ = ["MicroBatch", "device_of"]


def device_of(tensors: list[Tensor]) -> str:
    """Where the code computes: the kind of device that holds most of the numbers."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        kind = tensor.device.type
        if kind != "meta":
            sizes[kind] = sizes.get(kind, 0) + tensor.numel()
    return max(sizes, key=lambda k: sizes[k], default="cpu")


class MicroBatch:
    """What the models were called with, and the user's own statements from there to the backward."""

    def __init__(self, capture: Capture, random: dict[str, Any]) -> None:
        self._capture = capture
        self._random = random
        way = prepare(capture)
        if way.run is None:
            raise UsageError(f"this update cannot be run again: {way.missing}")
        # why the loss is not part of it, where it is not
        self.without_loss = way.missing if way.way == "modules" else ""
        if way.way != "modules":
            for call in capture.calls:
                _forget((call.args, call.kwargs))

    @property
    def models(self) -> list[nn.Module]:
        return [unwrap(m) for m in self._capture.models]

    @property
    def device(self) -> str:
        return device_of([p for m in self.models for p in m.parameters()])

    def __call__(self) -> Any:
        """Run it as it was: same inputs, same randomness. It ends where it calls `backward`."""
        buffers = [
            (module, name, buffer)
            for root in self.models
            for module in root.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        with ExitStack() as stack:
            with (
                torch._C.DisableTorchFunction(),
                _disable_current_modes(),
            ):  # its copies are not operations of the code
                stack.enter_context(as_it_was(self._capture))
            rng.restore(self._random)
            for module, name, buffer in buffers:
                module._buffers[name] = buffer  # whoever calls this looks after the buffers
            run = prepare(self._capture).run
            assert run is not None
            try:
                return run()
            except Gone:
                raise RuntimeError(
                    "an input of the model is no longer there: it was a result of another computation"
                ) from None


def _forget(thing: Any) -> None:
    """What another computation made is made again: a criterion gets the new outputs of the model, not those it had."""
    if isinstance(thing, Weak):
        thing.ref = lambda: None  # type: ignore[assignment]
    elif isinstance(thing, tuple | list):
        for item in thing:
            _forget(item)
    elif isinstance(thing, dict):
        _forget(tuple(thing.values()))
