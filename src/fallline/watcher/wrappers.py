"""Models that were put into DDP or FSDP, and calls that go past the wrapper."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from fallline.replay.modules import wrapper_of
from fallline.replay.shards import groups_of

__all__ = ["Wrappers"]


class Wrappers:
    """By the model inside."""

    def __init__(self) -> None:
        self._around: dict[int, weakref.ref[nn.Module]] = {}
        self._groups: dict[int, list[Any]] = {}  # of FSDP2, by model: what is reduced together
        self.any = False

    def add(self, around: nn.Module) -> None:
        """A model was put into DDP or FSDP1."""
        inner = getattr(around, "module", None)
        if isinstance(inner, nn.Module):
            self._around[id(inner)] = weakref.ref(around)
            self.any = True

    def add_sharded(self, module: nn.Module) -> None:
        """A model that FSDP2 shards."""
        self._groups[id(module)] = groups = groups_of(module)
        self.any = self.any or bool(groups)

    def reduces(self, module: nn.Module) -> bool | None:
        """Whether FSDP2 reduces the gradients of this model as things are now; None where it does not say."""
        known = [getattr(group, "reduce_grads", None) for group in self._groups.get(id(module), ())]
        return any(known) if known and None not in known else None

    def around(self, module: nn.Module) -> nn.Module | None:
        """The wrapped model whose inside this module is."""
        reference = self._around.get(id(module))
        around = reference() if reference is not None else None
        return around if around is not None and getattr(around, "module", None) is module else None

    def syncing(self) -> tuple[Any, ...]:
        """Of each wrapped model, whether its gradients are all-reduced as things are now."""
        return (
            *(getattr(m(), "require_backward_grad_sync", None) for m in self._around.values()),
            *(getattr(g[0], "reduce_grads", None) for g in self._groups.values() if g),
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
