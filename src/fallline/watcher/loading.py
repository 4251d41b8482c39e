"""Optimizer states as they are loaded: whether loading casts them to a narrower type than they were saved in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.taps.optimizers import STATE_LOADED, StateLoaded
from fallline.taps.tap import Subscription
from fallline.watcher.emit import spot
from fallline.watcher.fuse import Fuse
from fallline.watcher.observed import Observed

__all__ = ["Loading", "narrowed"]


class Loading:
    """Looks at `optimizer.load_state_dict(...)`."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(STATE_LOADED, fuse.guarded(self._loaded))

    def _loaded(self, call: StateLoaded) -> None:
        found = narrowed(call.optimizer, call.state)
        if found is not None and call.place is not None and "FL708" not in self._observed.codes:
            name, saved, loaded = found
            facts = {"name": name, "saved": str(saved)[6:], "loaded": str(loaded)[6:]}
            self._observed.add("FL708", spot(call.place)[0], facts)


def narrowed(
    optimizer: torch.optim.Optimizer, state: Any
) -> tuple[str, torch.dtype, torch.dtype] | None:
    """The first state that is narrower now than it was saved: its name, and both types."""
    saved = state.get("state") if isinstance(state, dict) else None
    if not isinstance(saved, dict):
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, held in saved.items():
        known = isinstance(number, int) and number < len(parameters) and isinstance(held, dict)
        now = optimizer.state.get(parameters[number], {}) if known else {}
        for name, value in held.items() if known else ():
            kept = now.get(name)
            if isinstance(value, Tensor) and isinstance(kept, Tensor) and value.numel() > 1:
                if value.is_floating_point() and kept.element_size() < value.element_size():
                    return str(name), value.dtype, kept.dtype
    return None
