"""The numbers of each optimizer: what its parameters are called, and how it is described in the run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fallline.events import Model
from fallline.replay.shards import flattened_in_parts
from fallline.runs.samples import ParameterInfo
from fallline.watcher.facts import autocast_dtype
from fallline.watcher.numbers import Numbers, describe_parameters, next_fingerprint
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Progress
from fallline.watcher.recording import Recording
from fallline.watcher.scalers import Scalers

__all__ = ["Closure", "Measures"]


class Closure:
    """Of the step in progress: what it does has its own place, and its time is not the step's."""

    def __init__(self) -> None:
        self.given = False
        self.computes = False  # gradients; Lightning gives closures that do nothing
        self.losses = 0  # before this evaluation
        self.before = 0  # losses before the step
        self.evaluations = 0
        self.uncleared = 0  # of these, those that added to the gradients of the one before
        self.first_loss: Any = None  # of the first evaluation, where there are several
        self.first = 0  # of the events that it causes
        self.started = 0.0
        self.seconds = 0.0


class Measures:
    """One `Numbers` for each optimizer, again where it has got more parameters."""

    def __init__(self, objects: Objects, scalers: Scalers, recording: Recording) -> None:
        self._objects = objects
        self._scalers = scalers
        self._recording = recording
        self.numbers: dict[str, Numbers] = {}  # by optimizer
        self._held: dict[str, int] = {}  # its parameter set
        self._asked: dict[str, int] = {}  # updates when we were asked for the next comparison

    def of(self, name: str, optimizer: torch.optim.Optimizer) -> Numbers:
        held = self._objects.optimizer_sets[name]
        numbers = self.numbers.get(name)
        if numbers is None or self._held[name] != held:
            flat = self._flattened(optimizer)
            named = self._replicated(name) if flat else self._named(optimizer)
            if numbers is None:
                half = self._scalers.any or autocast_dtype("cpu") == "float16"
                recording = self._recording
                recording.open()  # a spawned process learns its rank from a process group that it has made since
                numbers = Numbers(
                    named,
                    0.0 if flat else recording.options.budget,
                    half=half,
                    fingerprints=recording.world > 1,
                )
                self._describe(name, optimizer)
            else:
                numbers.refresh(named)
            self.numbers[name], self._held[name] = numbers, held
        return numbers

    def awaits(self, progress: Progress) -> int | None:
        """In how many steps the next one comes whose parameters are compared with those of other ranks."""
        left: list[int] = []
        for name, numbers in self.numbers.items():
            index = progress.counts.get(name, 0)
            if numbers.fingerprints and index > self._asked.get(name, -1):
                left.append(progress.steps_until(name, next_fingerprint(index) - index))
            self._asked[name] = index
        return min(left, default=None)

    def _flattened(self, optimizer: torch.optim.Optimizer) -> bool:
        """It steps flat copies, in which no single parameter can be told apart."""
        copies = [
            p for g in optimizer.param_groups for p in g["params"] if self._objects.is_copy(p)
        ]
        return bool(copies) and all(p.dim() == 1 for p in copies)

    def _replicated(self, name: str) -> list[tuple[ParameterInfo, Tensor]]:
        """The parameters that it was made for, where each rank holds them whole: nothing but their fingerprints is taken."""
        held = self._objects.tensors(self._objects.optimizer_sets[name])
        described = [d for _, m in self._objects.models() for d in describe_parameters(m).items()]
        known = dict(described)
        return [(known[id(p)], p) for p in held if id(p) in known and not hasattr(p, "ds_tensor")]

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[ParameterInfo, Tensor]]:
        known: dict[int, tuple[str, ParameterInfo]] = {}
        for model_name, model in self._objects.models():
            called = self._objects.called.get(model_name, model_name)
            described = describe_parameters(model)
            known = {key: (called, info) for key, info in described.items()} | known
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        names = Counter(known[id(p)][1].name for p in parameters if id(p) in known)
        named: list[tuple[ParameterInfo, Tensor]] = []
        for i, p in enumerate(parameters):
            if id(p) not in known:
                shape, dtype = tuple(p.shape), str(p.dtype)[6:]
                named.append((ParameterInfo(f"parameter {i}", "", i, shape, dtype), p))
                continue
            called, info = known[id(p)]
            if names[info.name] > 1:  # of several models
                info = replace(info, name=f"{called}.{info.name}")
            named.append((info, p))
        return named

    def _whole(self, models: list[str]) -> list[str]:
        """What people call these models, without those that are parts of another one."""
        objects = self._objects
        held: dict[frozenset[int], str] = {}
        for model in models:
            name = objects.called.get(model) or objects.described[model].type or ""
            held.setdefault(objects.members(objects.model_sets[model]), name)
        named = [name for own, name in held.items() if not any(own < other for other in held)]
        return [*named[:3], "..."] if len(named) > 3 else named

    def evaluated(self, name: str, optimizer: torch.optim.Optimizer, closure: Closure) -> None:
        """The first step evaluated its closure many times (LBFGS): it may be the only one, and then all that is learned is in it."""
        loss = closure.first_loss
        if isinstance(loss, Tensor):
            loss = float(loss) if loss.is_cpu else None
        self._describe(
            name,
            optimizer,
            evaluations=closure.evaluations,
            first_loss=loss,
            carried=closure.uncleared == closure.evaluations - 1,
        )

    def _describe(self, name: str, optimizer: torch.optim.Optimizer, **more: Any) -> None:
        objects = self._objects
        held = objects.members(objects.optimizer_sets[name])
        models = [m for m, s in objects.model_sets.items() if held & objects.members(s)]
        described = (objects.described[m] for m in models)
        wrapper = next((d.wrapper for d in described if isinstance(d, Model) and d.wrapper), None)
        device = next((p.device.type for g in optimizer.param_groups for p in g["params"]), None)
        self._recording.open().describe(
            name,
            {
                "kind": "optimizer",
                "type": type(optimizer).__name__,
                "model": models[0] if models else None,
                "wrapper": wrapper,
                "device": device,
                "sharded": _sharded(optimizer),
                "trains": self._whole(models),
                **more,
            },
        )


def _sharded(optimizer: torch.optim.Optimizer) -> bool:
    """Each rank holds parts of the parameters: DTensors of FSDP2 or tensor parallel, what FSDP1 has flattened."""
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    return any(hasattr(p, "_local_tensor") for p in parameters) or flattened_in_parts(parameters)
