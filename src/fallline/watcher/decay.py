"""Weight decay by parameter group: norm weights in a group that is decayed, beside one that is not."""

from __future__ import annotations

import re

import torch
from torch import nn

from fallline.location import Location
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed

__all__ = ["Decay", "decayed_norms"]

_NORM = re.compile(r"(Layer|RMS|Batch|Group|Instance)Norm|^RMSNorm")
_STEPS = 2  # the groups of an optimizer are looked at once, when its model has been called


class Decay:
    """Looks at the optimizers once, after their first updates."""

    def __init__(self, objects: Objects, observed: Observed) -> None:
        self._objects = objects
        self._observed = observed

    def stepped(self, steps: int) -> None:
        if steps != _STEPS:
            return
        for name, optimizer in self._objects.optimizers():
            norms = decayed_norms(optimizer, [m for _, m in self._objects.models()])
            at = self._objects.described[name].at
            if norms and at is not None:
                self._observe(at, norms)

    def _observe(self, at: Location, norms: list[str]) -> None:
        self._observed.add("FL140", at, {"parameters": norms[:16], "count": len(norms)})


def decayed_norms(optimizer: torch.optim.Optimizer, models: list[nn.Module]) -> list[str]:
    """The norm weights that are decayed, of an optimizer that also has a group which is not, without a norm weight in it."""
    groups = optimizer.param_groups
    decayed = {id(p) for g in groups if g.get("weight_decay") for p in g["params"]}
    exempt = {id(p) for g in groups if g.get("weight_decay") == 0 for p in g["params"]}
    if not decayed or not exempt:
        return []
    norms = {
        id(module.weight): f"{name}.weight"
        for model in models
        for name, module in model.named_modules()
        if _NORM.search(type(module).__name__)
        and isinstance(getattr(module, "weight", None), nn.Parameter)
    }
    return [] if exempt & norms.keys() else [norms[i] for i in norms if i in decayed]
