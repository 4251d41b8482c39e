"""Features of a loop that can be turned off, and what the framework offers to turn: found by patching the call that turns them on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from fallline.instruments.equal.way import Way
from fallline.taps.on_import import after_import
from fallline.taps.patches import Patches, Wrapped

__all__ = ["turn"]

Met = set[str]


def turn(way: Way, patches: Patches, met: Met) -> None:
    """Turn off what this way does without; note in `met` what the script uses."""
    for name, install in _FEATURES.items():
        install(patches, met, name in way.without)
    _gloo(patches)
    after_import("transformers.trainer", lambda: _trainer(way, patches, met))
    for framework in ("accelerate", "lightning", "pytorch_lightning", "deepspeed"):
        after_import(framework, functools.partial(met.add, framework))


def _checkpointing(patches: Patches, met: Met, off: bool) -> None:
    def make(original: Wrapped) -> Wrapped:
        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            met.add("checkpointing")
            if not off:
                return original(function, *args, **kwargs)
            own = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")  # fmt: skip
            return function(*args, **{k: v for k, v in kwargs.items() if k not in own})

        return checkpoint

    import torch.utils.checkpoint as home

    patches.patch(home, "checkpoint", make, imported=True)


def _compile(patches: Patches, met: Met, off: bool) -> None:
    def make(original: Wrapped) -> Wrapped:
        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            if str(getattr(model, "__module__", "")).startswith("deepspeed."):
                return original(model, *args, **kwargs)  # a helper of its own, not the loop's model
            met.add("compile")
            if not off:
                return original(model, *args, **kwargs)
            return (lambda function: function) if model is None else model

        return compile

    def method(original: Wrapped) -> Wrapped:
        def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
            met.add("compile")
            return None if off else original(self, *args, **kwargs)

        return compile

    patches.patch(torch, "compile", make, imported=True)
    patches.patch(torch.nn.Module, "compile", method)


def _autocast(patches: Patches, met: Met, off: bool) -> None:
    def make(original: Wrapped) -> Wrapped:
        def __enter__(self: Any) -> Any:
            if self._enabled:
                met.add("autocast")
                self._enabled = not off
            return original(self)

        return __enter__

    patches.patch(torch.amp.autocast_mode.autocast, "__enter__", make)


def _attention(patches: Patches, met: Met, off: bool) -> None:
    from torch.nn import functional

    def make(original: Wrapped) -> Wrapped:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            met.add("attention kernels")
            if not off:
                return original(*args, **kwargs)
            from torch.nn.attention import SDPBackend, sdpa_kernel

            with sdpa_kernel(SDPBackend.MATH):
                return original(*args, **kwargs)

        return scaled_dot_product_attention

    patches.patch(functional, "scaled_dot_product_attention", make, imported=True)


def _optimizer_kernels(patches: Patches, met: Met, off: bool) -> None:
    def make(original: Wrapped) -> Wrapped:
        def __init__(self: Any, params: Any, defaults: dict[str, Any]) -> None:
            if defaults.get("fused") or defaults.get("foreach"):
                met.add("optimizer kernels")
                if off:
                    defaults = {**defaults, "fused": False, "foreach": False}
            original(self, params, defaults)

        return __init__

    patches.patch(torch.optim.Optimizer, "__init__", make)


def _channels_last(patches: Patches, met: Met, off: bool) -> None:
    """Of models and of what they are given: either alone makes the convolutions between them use it."""
    formats = (torch.channels_last, torch.channels_last_3d)

    def make(original: Wrapped) -> Wrapped:
        def change(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("memory_format") in formats:
                met.add("channels_last")
                if off:
                    kwargs = {k: v for k, v in kwargs.items() if k != "memory_format"}
                    if not args and not kwargs:
                        return self
            return original(self, *args, **kwargs)

        return change

    patches.patch(torch.nn.Module, "to", make)
    for name in ("to", "contiguous"):  # inherited from a class that cannot be patched
        setattr(torch.Tensor, name, make(getattr(torch.Tensor, name)))
        patches.on_removal(functools.partial(delattr, torch.Tensor, name))


_FEATURES: dict[str, Callable[[Patches, Met, bool], None]] = {
    "checkpointing": _checkpointing,
    "compile": _compile,
    "autocast": _autocast,
    "attention kernels": _attention,
    "optimizer kernels": _optimizer_kernels,
    "channels_last": _channels_last,
}


def _gloo(patches: Patches) -> None:
    """Ranks on a machine without a GPU for each talk over gloo."""
    if not torch.distributed.is_available():
        return

    def make(original: Wrapped) -> Wrapped:
        def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not torch.cuda.is_available():
                backend = "gloo"
                kwargs.pop("device_id", None)
            return original(backend, *args, **kwargs)

        return init_process_group

    patches.patch(torch.distributed, "init_process_group", make, imported=True)


def _trainer(way: Way, patches: Patches, met: Met) -> None:
    """transformers counts the tokens of all micro-batches of an update before the first of them: at once, that is one."""
    met.add("transformers")
    trainer: Any = sys.modules["transformers.trainer"].Trainer

    def make(original: Wrapped) -> Wrapped:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            options = kwargs.get("args") or (args[1] if len(args) > 1 else None)
            if options is not None and way.at_once > 1:
                options.gradient_accumulation_steps = 1
            original(self, *args, **kwargs)

        return __init__

    patches.patch(trainer, "__init__", make)
