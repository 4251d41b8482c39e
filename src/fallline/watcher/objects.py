"""Stable names for the things a run touches: optimizers, models, scalers, loaders, and sets of parameters.

Nothing here keeps a user's object alive. Parameter sets are kept as numbers; when a trace is built they become
names, cut so finely that two sets share a name exactly where they share parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Model, Object, describe
from fallline.location import Location
from fallline.replay.modules import unwrap, wrapper_of
from fallline.replay.shards import shards_of, views_of

__all__ = ["Objects", "has_mode"]

_BATCHNORM = (nn.modules.batchnorm._BatchNorm,)


def has_mode(module: nn.Module) -> bool:
    """It computes something else in train mode than in eval mode."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    attention = isinstance(module, nn.MultiheadAttention) and module.dropout > 0
    tracks = getattr(module, "track_running_stats", False)  # InstanceNorm, if it is asked to
    return bool(dropout or attention or tracks) or isinstance(module, (*_BATCHNORM, nn.RReLU))


def _any_has_mode(model: nn.Module) -> bool | None:
    """None: no such layer is in it, but code of its own asks for its mode, as `F.dropout(x, training=self.training)` does."""
    if any(map(has_mode, model.modules())):
        return True
    parts = list(model.modules())
    hooked = any(part._forward_pre_hooks or part._forward_hooks for part in parts)
    return None if hooked or any(map(_asks_for_mode, {type(p) for p in parts})) else False


def _asks_for_mode(kind: type[nn.Module]) -> bool:
    """Some method of a module's own class names `training`; what torch's layers do with it is known."""
    own = (c for c in kind.__mro__ if not c.__module__.startswith("torch.nn.modules."))
    methods = (getattr(f, "__code__", None) for c in own for f in vars(c).values())
    codes = [code for code in methods if code is not None]
    for code in codes:
        if "training" in code.co_names:
            return True
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    return False


class Objects:
    """Names by first appearance: "optimizer#1", "model#2". One per watched process."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._counts: dict[str, int] = {}
        self._serials: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._next = 0
        self._sets: dict[frozenset[int], int] = {}
        self._keys: dict[tuple[int, ...], int] = {}
        self._members: list[frozenset[int]] = []
        self._covers: dict[tuple[int, int], bool] = {}
        self.described: dict[str, Object] = {}
        self.model_sets: dict[str, int] = {}
        self.optimizer_sets: dict[str, int] = {}
        self._looks: dict[str, list[tuple[int, int]]] = {}
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self.called: dict[str, str] = {}  # model → what the code that calls it calls it
        self._optimizers: dict[str, weakref.ref[torch.optim.Optimizer]] = {}
        self._made_for: dict[str, int] = {}  # optimizer → the first set of parameters it was given
        self._copies: dict[int, frozenset[int]] = {}  # master copy → the parameters it stands for
        self._borrowers: set[int] = set()  # of these copies, those that get the gradient itself

    # -- names -------------------------------------------------------------------------------------------------

    def known(self, thing: Any) -> str | None:
        entry = self._names.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def name(self, kind: str, thing: Any, at: Location | None = None, **facts: Any) -> str:
        """The stable name of a thing; describes it the first time."""
        entry = self._names.get(id(thing))
        if entry is not None and entry[0]() is thing:
            return entry[1]
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = f"{kind}#{number}"
        self._names[id(thing)] = (weakref.ref(thing), name)
        self.described[name] = describe(kind, name, at, **facts)
        return name

    def model(self, module: nn.Module, at: Location | None = None) -> str:
        """The name of a model, without its wrappers."""
        inner = unwrap(module)
        name = self.known(inner)
        if name is None:
            name = self.name(
                "model",
                inner,
                at,
                type=type(inner).__name__,
                batchnorm=any(isinstance(m, _BATCHNORM) for m in inner.modules()),
                has_mode=_any_has_mode(inner),
            )
            self._models[name] = weakref.ref(inner)
            self.model_sets[name] = self.parameters(inner.parameters())
        wrapped = wrapper_of(module)
        model = self.described[name]
        if wrapped is not None and isinstance(model, Model):
            model.wrapper = wrapped
        return name

    def optimizer(self, optimizer: torch.optim.Optimizer, at: Location | None = None) -> str:
        """The name of an optimizer; notices parameters that were added."""
        name = self.known(optimizer)
        if name is None:
            name = self.name(
                "optimizer",
                optimizer,
                at,
                type=type(optimizer).__name__,
            )
            self._optimizers[name] = weakref.ref(optimizer)
        # the lists are the optimizer's own: looking at them instead of into them is what makes this cheap
        look = [(id(g["params"]), len(g["params"])) for g in optimizer.param_groups]
        if self._looks.get(name) != look:
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            if self._given(name, self.parameters(parameters)):
                self._looks[name] = look
        return name

    def _given(self, name: str, now: int) -> bool:
        """An optimizer holds this set now. DeepSpeed, apex and others put master copies in the place of a model's parameters, some
        of them one group after the other in each step: the optimizer still steps the parameters that it was made for.

        Whether that is so shows when a model has run; False: ask again.
        """
        first = self._made_for.setdefault(name, now)
        trained: frozenset[int] = frozenset().union(*map(self.members, self.model_sets.values()))
        if first != now and self._members[first] & trained and not self._members[now] & trained:
            self.stands_for(now, self._members[first])
            now = first
        self.optimizer_sets[name] = now
        return bool(trained) or first == now

    def stands_for(self, copies: int, originals: frozenset[int]) -> None:
        """The tensors of the first set are copies of these parameters: who steps or clips the one means the other."""
        for copy in self._members[copies]:
            self._copies[copy] = self._copies.get(copy, frozenset()) | originals
        self._covers.clear()

    def lent(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Tensors of an optimizer (the first of each pair) get the gradients of these parameters: who steps the one means the other."""
        for borrower, owner in pairs:
            self._copies[borrower] = frozenset({owner})
            self._borrowers.add(borrower)
        self._covers.clear()

    def borrows(self, number: int) -> bool:
        """Whether tensors of this set have the gradients of others."""
        return not self._borrowers.isdisjoint(self._members[number])

    def is_copy(self, tensor: Tensor) -> bool:
        """Whether it stands for parameters of a model."""
        return bool(self._copies) and self.serial(tensor) in self._copies

    def models(self) -> list[tuple[str, nn.Module]]:
        return [
            (name, module) for name, ref in self._models.items() if (module := ref()) is not None
        ]

    def optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        return [
            (name, thing) for name, ref in self._optimizers.items() if (thing := ref()) is not None
        ]

    def held(self, tensor: Tensor) -> bool:
        """Some optimizer steps this tensor."""
        serial = self.serial(tensor)
        return any(serial in self._members[n] for n in self.optimizer_sets.values())

    def as_stepped(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """What optimizers hold of these: FSDP's whole parameters, where a graph ends and which a model shows after its forward
        pass, are not the ones that are stepped."""
        shards = shards_of(model for _, model in self.models())
        return [
            p for whole in parameters for p in shards.get(id(whole)) or views_of(whole) or [whole]
        ]

    def tensors(self, number: int) -> list[Tensor]:
        """The parameters of a set that are still there, in the order in which they were met."""
        found = ((serial, ref()) for ref, serial in list(self._serials.values()))
        wanted = self._members[number]
        return [
            t
            for serial, t in sorted(found, key=lambda pair: pair[0])
            if serial in wanted and t is not None
        ]

    def is_trained(self, leaf: Tensor) -> bool:
        """It is a parameter, or some optimizer steps it."""
        return isinstance(leaf, nn.Parameter) or self.held(leaf)

    # -- parameter sets ----------------------------------------------------------------------------------------

    def serial(self, parameter: Tensor) -> int:
        key = id(parameter)
        entry = self._serials.get(key)
        if entry is not None and entry[0]() is parameter:
            return entry[1]
        self._next += 1
        self._serials[key] = (weakref.ref(parameter), self._next)
        return self._next

    def parameters(self, parameters: Iterable[Tensor]) -> int:
        """The number of this set of parameters."""
        listed = parameters if isinstance(parameters, list) else list(parameters)
        key = tuple(map(id, listed))
        known = self._keys.get(key)
        if known is not None and all(
            self._serials[id(p)][0]() is p for p in (*listed[:1], *listed[-1:])
        ):
            return known
        members = frozenset(map(self.serial, listed))
        number = self._sets.get(members)
        if number is None:
            number = self._sets[members] = len(self._members)
            self._members.append(members)
        self._keys[key] = number
        return number

    def covers(self, wide: int, narrow: int) -> bool:
        """Whether one set holds all of another."""
        if wide == narrow:
            return True
        known = self._covers.get((wide, narrow))
        if known is None:
            known = self._covers[wide, narrow] = self.members(narrow) <= self.members(wide)
        return known

    def parameter_names(self, serials: Iterable[int], *, whole: bool = False) -> tuple[str, ...]:
        """What people call these parameters, as in named_parameters(); `whole`: with the model's own name, where there are several."""
        wanted = set(serials)
        if not wanted:
            return ()
        models = self.models()
        known: dict[int, str] = {}
        for model_name, model in models:
            called = self.called.get(model_name) if whole and len(models) > 1 else None
            for name, p in model.named_parameters():
                known[self.serial(p)] = f"{called}.{name}" if called else name
        return tuple(sorted(known.get(s, f"parameter {s}") for s in wanted))

    def members(self, number: int) -> frozenset[int]:
        """The parameters of a set; in the place of a master copy those it stands for."""
        own = self._members[number]
        if not self._copies or self._copies.keys().isdisjoint(own):
            return own
        return frozenset(s for member in own for s in self._copies.get(member, (member,)))

    def named_sets(self, used: Iterable[int]) -> dict[int, frozenset[str]]:
        """Set number → names, over the sets that a trace uses together with all models and optimizers."""
        models = dict(self.model_sets)
        numbers = sorted({*used, *models.values()})
        signature: dict[int, list[int]] = {}
        for number in numbers:
            for member in self.members(number):
                signature.setdefault(member, []).append(number)
        pieces: dict[tuple[int, ...], str] = {}
        parts: dict[str, int] = {}
        for key in sorted(set(map(tuple, signature.values()))):
            whole = [m for m, s in models.items() if s in key]
            size = sum(1 for s in signature.values() if tuple(s) == key)
            owner = (
                min(whole, key=lambda m: len(self.members(models[m]))) if whole else "parameters"
            )
            if whole and size == len(self.members(models[owner])):
                pieces[key] = owner
            else:
                parts[owner] = parts.get(owner, 0) + 1
                pieces[key] = f"{owner}:{parts[owner]}"
        named = {n: {pieces[tuple(signature[m])] for m in self.members(n)} for n in numbers}
        for number, names in named.items():
            # a set that holds a whole model also goes by the model's name, however finely it was cut
            names |= {
                m
                for m, s in models.items()
                if self.members(s) and self.members(s) <= self.members(number)
            }
        return {number: frozenset(names) for number, names in named.items()}


def learning_rate(optimizer: torch.optim.Optimizer) -> float | None:
    """Of the first group, where it is a plain number."""
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if rate.__class__ is float:
        return rate
    return float(rate) if isinstance(rate, int | float) else None
