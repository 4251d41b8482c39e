"""Lists of layers in which one layer fills several places, or whose blocks all hold one and the same layer.

Noticed when the list is filled, and observed once an optimizer has stepped the layer's weights.
"""

from __future__ import annotations

import ast
import weakref
from typing import NamedTuple

from torch import nn

from fallline.location import Location
from fallline.replay.modules import name_in
from fallline.replay.source import enclosing, statement_at
from fallline.taps.frames import is_user_file
from fallline.taps.modules import MODULE_REGISTERED, ModuleRegistered
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed

__all__ = ["SharedModules"]

_STEPS = 2
_MOST = 16
_LISTS = (nn.ModuleList, nn.Sequential)


class _Shared(NamedTuple):
    holder: weakref.ref[nn.Module]
    layer: weakref.ref[nn.Module]
    called: str  # what the blocks call it; empty where it is in the list itself
    named: str  # what the code that fills the list calls it
    at: Location


class SharedModules:
    """Of the models that are made while we watch."""

    def __init__(self, objects: Objects, observed: Observed) -> None:
        self._objects = objects
        self._observed = observed
        self._found: list[_Shared] = []

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(MODULE_REGISTERED, fuse.guarded(self._registered))

    def _registered(self, call: ModuleRegistered) -> None:
        holder = call.module
        if call.name == "0" or not isinstance(holder, _LISTS) or len(self._found) >= _MOST:
            return
        found = _again(holder, call)
        if found is None or not is_user_file(call.frame.f_code.co_filename):
            return
        where = call.place
        known = any(s.holder() is holder for s in self._found)
        if where is not None and not known and not _chosen(where.at):
            layer, called = found
            named = name_in(call.frame, layer) or ""
            held: weakref.ref[nn.Module] = weakref.ref(holder)
            self._found.append(_Shared(held, weakref.ref(layer), called, named, where.at))

    def stepped(self, steps: int) -> None:
        """Enough updates: what is shared is trained, or it does no harm."""
        if steps == _STEPS:
            for shared in self._found:
                holder, layer = shared.holder(), shared.layer()
                if holder is not None and layer is not None and self._is_trained(layer):
                    self._observe(shared, holder, layer)

    def _is_trained(self, layer: nn.Module) -> bool:
        return any(p.requires_grad and self._objects.held(p) for p in layer.parameters())

    def _observe(self, shared: _Shared, holder: nn.Module, layer: nn.Module) -> None:
        blocks = [m for m in holder._modules.values() if m is not None]
        places = sum(layer is (getattr(m, shared.called) if shared.called else m) for m in blocks)
        facts = {"layer": type(layer).__name__, "places": places}
        facts |= {"called": shared.called, "named": shared.named}
        self._observed.add("FL811", shared.at, facts)


def _again(holder: nn.Module, call: ModuleRegistered) -> tuple[nn.Module, str] | None:
    """What the new item shares with one before it: itself, or a part. Norms and activations are shared on purpose."""
    others = [m for name, m in holder._modules.items() if name != call.name and m is not None]
    if any(m is call.new for m in others):
        return (call.new, "") if _has_weights(call.new) else None
    first = others[0] if others else None
    if first is None or type(first) is not type(call.new):
        return None
    for name, part in call.new._modules.items():
        if part is not None and first._modules.get(name) is part and _has_weights(part):
            return part, name
    return None


def _has_weights(layer: nn.Module) -> bool:
    return any(p.dim() > 1 for p in layer.parameters())


def _chosen(at: Location) -> bool:
    """In one branch of an `if` that has another one: the program asks whether to share."""
    statement = statement_at(at.path, at.line)
    around = enclosing(statement) if statement is not None else []
    return any(isinstance(up, ast.If) and bool(up.orelse) for up in around)
