"""What is kept of a micro-batch so that it can be run again: small things, and nothing that would live longer for it."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import fallline
from fallline.replay.randomness import State
from fallline.replay.shards import is_spread
from fallline.taps.frames import is_user_file, user_chain, user_frames

__all__ = ["Call", "CallSites", "Capture", "Gone", "Weak", "take"]

_BETWEEN = tuple(
    os.path.dirname(os.path.abspath(f)) + os.sep for f in (torch.__file__, fallline.__file__)
)

_autocast_enabled = torch.is_autocast_enabled
Chain = list[tuple[int, CodeType, int]]  # frames: id, code, instruction
Site = tuple[int, int]  # id of the code, instruction


class CallSites:
    """What is known about the places that call models and backward. Their code is held, so that its id stays its own."""

    def __init__(self) -> None:
        # whether its line calls the model itself, and whether a framework called the function it is in
        self.met: dict[Site, tuple[bool, bool, CodeType]] = {}
        # how many of the user's frames have to be kept, as far as updates that were recorded have shown: up to the one
        # that calls both
        self.depths: dict[Site, int] = {}
        self._codes: dict[int, CodeType] = {}

    def deepen(self, chain: Chain, depth: int) -> None:
        site = (id(chain[0][1]), chain[0][2])
        self._codes[site[0]] = chain[0][1]
        self.depths[site] = max(depth, self.depths.get(site, 0))


class Call(NamedTuple):
    """One call of a model. Results of other computations are held weakly: the graph must die when the user lets it."""

    module: weakref.ref[nn.Module]
    args: Any
    kwargs: Any
    autocast: tuple[str, torch.dtype] | None
    chain: Chain
    training: bool = True


_call: Any = functools.partial(tuple.__new__, Call)  # past the function that names its arguments


@dataclass(slots=True)
class Capture:
    """One micro-batch: the model calls since the last backward."""

    random: State | None  # before the first call; None where nothing was drawn since
    sites: CallSites = field(default_factory=CallSites)
    calls: list[Call] = field(default_factory=list)
    function: tuple[CodeType, tuple[Any, ...]] | None = None
    direct: bool = True  # the user's own line calls the model: `model(x).sum().backward()`, not `trainer.train()`
    over: bool = False
    end_chain: Chain = field(default_factory=list)  # where the backward was called from
    # calls that may come again: model, code, instruction, mode; no more than one frame of each is kept
    _known: list[tuple[weakref.ref[nn.Module], CodeType, int, bool]] = field(default_factory=list)

    def add(
        self,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        device: str,
        frame: FrameType,
        recorded: bool = True,
    ) -> None:
        """A model is called, from this frame. `recorded`: not in an update that goes like the ones before it."""
        most = None if recorded else self.sites.depths.get((id(frame.f_code), frame.f_lasti))
        chain = user_chain(frame, most)
        if not self.calls and chain:
            site = (id(chain[0][1]), chain[0][2])
            known = self.sites.met.get(site)
            if known is None or known[1]:
                known = self._meet(site, frame)
            self.direct = known[0]
        try:
            autocast = _autocast_enabled(device)
        except RuntimeError:  # a device without it
            autocast = False
        half = (device, torch.get_autocast_dtype(device)) if autocast else None
        module_, training = weakref.ref(module), module.training
        if most == 1 and half is None and len(self._known) == len(self.calls):
            self._known.append((module_, chain[0][1], chain[0][2], training))
        self.calls.append(Call(module_, hold(args), hold(kwargs), half, chain, training))

    def again(self, module: nn.Module, args: Any, kwargs: Any, frame: FrameType) -> bool:
        """The same call as at this point of the last micro-batch, as far as it was known then; else `add` it."""
        if self.over:
            self.calls, self.over = [], False
        at = len(self.calls)
        if at >= len(self._known):
            return False
        module_, code, instruction, training = self._known[at]
        if (
            code is not frame.f_code
            or instruction != frame.f_lasti
            or module_() is not module
            or training is not module.training
        ):
            del self._known[at:]
            return False
        for value in args:
            if value.__class__ is not Tensor or value.grad_fn is not None:
                args = hold(args)
                break
        if kwargs:
            kwargs = hold(kwargs)
        chain = [(id(frame), code, instruction)]
        self.calls.append(_call((module_, args, kwargs, None, chain, training)))
        return True

    def _meet(self, site: Site, frame: FrameType | None) -> tuple[bool, bool, CodeType]:
        """The first call of a micro-batch from a place that is new, or in a function that a framework calls."""
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        assert frame is not None
        self.function = called_by_framework(frame)
        known = self.sites.met.get(site)
        if known is None:
            framework = self.function is not None
            known = self.sites.met[site] = (_called_by(frame), framework, frame.f_code)
        return known

    def end(self, frame: FrameType, recorded: bool = True) -> None:
        """The backward has come, from this frame."""
        self.over = True
        if recorded:
            self.end_chain = user_chain(frame)
            self._learn()
            return
        code, instruction = frame.f_code, frame.f_lasti
        most = self.sites.depths.get((id(code), instruction))
        only = most == 1
        self.end_chain = [(id(frame), code, instruction)] if only else user_chain(frame, most)

    def _learn(self) -> None:
        """How far out the frame is that calls both."""
        ends = {key: depth for depth, (key, _, _) in enumerate(self.end_chain, 1)}
        for call in self.calls:
            depth = next((d for d, (key, _, _) in enumerate(call.chain, 1) if key in ends), 0)
            if depth:
                self.sites.deepen(call.chain, depth)
                self.sites.deepen(self.end_chain, ends[call.chain[depth - 1][0]])

    @property
    def models(self) -> list[nn.Module]:
        found = [c.module() for c in self.calls]
        return list({id(m): m for m in found if m is not None}.values())

    @property
    def holders(self) -> list[nn.Module]:
        """Modules whose methods call models: `self` of the function that a framework called, and of the user's frames now."""
        selves = list(self.function[1][:1]) if self.function is not None else []
        selves += [f.f_locals.get("self") for f in user_frames()]
        return [s for s in selves if isinstance(s, nn.Module)]

    @property
    def sharded(self) -> bool:
        """Models whose forward pass talks to other ranks cannot be run again by one of them."""
        return any(map(is_spread, self.models))


class Weak:
    """A tensor with a graph, as long as someone else holds it."""

    __slots__ = ("ref",)

    def __init__(self, tensor: Tensor) -> None:
        self.ref = weakref.ref(tensor)


def hold(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return thing if thing.grad_fn is None else Weak(thing)
    if type(thing) is tuple:
        return tuple(map(hold, thing))
    if type(thing) is list:
        return [hold(x) for x in thing]
    if type(thing) is dict:
        return {k: hold(v) for k, v in thing.items()}
    return thing


class Gone(Exception):
    """An input of a model call is no longer there."""


def take(thing: Any) -> Any:
    if isinstance(thing, Weak):
        tensor = thing.ref()
        if tensor is None:
            raise Gone
        return tensor
    if type(thing) in (tuple, list):
        return type(thing)(map(take, thing))
    if type(thing) is dict:
        return {k: take(v) for k, v in thing.items()}
    return thing


def called_by_framework(frame: FrameType) -> tuple[CodeType, tuple[Any, ...]] | None:
    """The user's function and its arguments, when a framework called it (Lightning's training_step)."""
    outer = frame.f_back
    if (
        outer is None
        or is_user_file(outer.f_code.co_filename)
        or "lightning" not in outer.f_code.co_filename
    ):
        return None
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    values = frame.f_locals
    return (code, tuple(values[n] for n in names)) if all(n in values for n in names) else None


def _called_by(frame: FrameType) -> bool:
    """Whether nothing but torch and ourselves is between this frame and us."""
    here: FrameType | None = sys._getframe()
    while here is not None and here is not frame:
        if not here.f_code.co_filename.startswith(_BETWEEN):
            return False
        here = here.f_back
    return True
