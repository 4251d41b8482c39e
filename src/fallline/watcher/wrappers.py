"""Models that were put into DDP or FSDP1, and calls that go past the wrapper."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from fallline.replay.modules import wrapper_of

__all__ = ["Wrappers"]


class Wrappers:
    """By the model inside."""

    def __init__(self) -> None:
        self._around: dict[int, weakref.ref[nn.Module]] = {}
        self.any = False

    def add(self, around: nn.Module) -> None:
        """A model was put into DDP or FSDP1."""
        inner = getattr(around, "module", None)
        if isinstance(inner, nn.Module):
            self._around[id(inner)] = weakref.ref(around)
            self.any = True

    def around(self, module: nn.Module) -> nn.Module | None:
        """The wrapped model whose inside this module is."""
        reference = self._around.get(id(module))
        around = reference() if reference is not None else None
        return around if around is not None and getattr(around, "module", None) is module else None

    def syncing(self) -> tuple[Any, ...]:
        """Of each wrapped model, whether its gradients are all-reduced as things are now."""
        return tuple(
            getattr(around(), "require_backward_grad_sync", None)
            for around in self._around.values()
        )

    def sharded(self, parameters: list[Any]) -> bool:
        """Parts of parameters that FSDP1 has spread over ranks."""
        spread = any(
            wrapper_of(m) == "fsdp1" and _strategy(m) != "NO_SHARD"
            for ref in self._around.values()
            if (m := ref()) is not None
        )
        return spread and any(
            getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False)
            for p in parameters
        )


def _strategy(module: nn.Module) -> str:
    return getattr(getattr(module, "sharding_strategy", None), "name", "")
