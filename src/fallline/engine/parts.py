"""The objects of a run, by name: how each is saved, whether what was saved fits, and how it is restored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fallline.engine import rng
from fallline.engine.gradients import is_dtensor, some
from fallline.engine.position import capture_sources, is_stateful, restore_sources
from fallline.engine.stepper import Stepper
from fallline.errors import EngineError

__all__ = ["Parts", "bare"]


class Parts:
    """What a checkpoint is made of. A Stepper brings everything; without one, the user gives the parts."""

    def __init__(
        self,
        stepper: Stepper | None,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        scaler: Any,
        loader: Any,
        also: Mapping[str, Any] | None,
    ) -> None:
        if stepper is not None and any(
            x is not None for x in (model, optimizer, scheduler, scaler, loader)
        ):
            raise EngineError(
                "the stepper brings its model, optimizers, schedulers, scaler and loader: give it alone"
            )
        self.stepper, self.loader = stepper, loader
        self.models = [bare(m) for m in (stepper.models if stepper else _listed(model))]
        self.optimizers = stepper.optimizers if stepper else _listed(optimizer)
        self.schedulers = stepper.schedulers if stepper else _listed(scheduler)
        self.scalers = [] if stepper else _listed(scaler)
        self.also = _named_objects(also)
        if stepper is not None and stepper.ema is not None:
            self.also["ema"] = stepper.ema
        self.sharded = any(is_dtensor(p) for m in self.models for p in m.parameters())
        if not self.models:
            raise EngineError("a checkpoint without a model: give stepper=... or model=...")

    # -- saving -----------------------------------------------------------------------------------------------------

    def _named(self, tensors: bool = True) -> dict[str, list[Any]]:
        every = {"scheduler": self.schedulers, "scaler": self.scalers}
        if tensors:
            every = {"model": self.models, "optimizer": self.optimizers, **every}
        every |= {name: [part] for name, part in self.also.items()}
        return {name: objects for name, objects in every.items() if objects}

    def state(self, tensors: bool = True) -> dict[str, Any]:
        return {
            name: [part.state_dict() for part in objects]
            for name, objects in self._named(tensors).items()
        }

    def rank_state(self) -> dict[str, Any]:
        """What differs from rank to rank."""
        state: dict[str, Any] = {"rng": rng.capture()}
        if self.stepper is not None:
            state["stepper"] = self.stepper.state_dict()
        if self.loader is not None:
            state["loader"] = (
                {"own": self.loader.state_dict()}
                if is_stateful(self.loader)
                else capture_sources(self.loader)
            )
        return state

    def describe(self) -> dict[str, Any]:
        """The kind of each part, and the order in which an optimizer holds its parameters, which the numbers alone do not show."""
        return {
            "optimizers": [
                {"type": type(o).__name__, "names": self._names_of(o)} for o in self.optimizers
            ],
            "schedulers": [type(s).__name__ for s in self.schedulers],
        }

    def _names_of(self, optimizer: Any) -> list[str]:
        names: dict[int, str] = {}
        for i, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), f"{i}.{name.replace('_orig_mod.', '')}")
        return [names.get(id(p), "?") for p in _parameters(optimizer)]

    def stable(self) -> Iterator[Tensor]:
        """The tensors that change only when the Stepper steps: they can be copied while the next forward pass runs."""
        for model in [*self.models, *([self.also["ema"]] if self._has_ema else [])]:
            yield from model.parameters()
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                yield from (v for v in state.values() if isinstance(v, Tensor))

    @property
    def _has_ema(self) -> bool:
        return self.stepper is not None and self.stepper.ema is not None

    # -- loading ----------------------------------------------------------------------------------------------------

    def check(
        self, saved: dict[str, Any], mine: dict[str, Any] | None, strict: bool, path: Path
    ) -> None:
        """Raise before anything is changed: what was saved must have a place here, and must fit it."""
        parts = saved["parts"]
        here = set(self._named(tensors="model" in parts))
        here |= {
            n for n, p in (("stepper", self.stepper), ("loader", self.loader)) if p is not None
        }
        in_file = set(parts) | (set(mine) - {"rng"} if mine else set())
        if mine is None:
            here -= {"stepper", "loader"}
        if strict and in_file != here:
            problems = [
                f"{name} was saved and would not be restored" for name in sorted(in_file - here)
            ]
            problems += [f"{name} is not in the checkpoint" for name in sorted(here - in_file)]
            raise EngineError(
                f"{path}: {'; '.join(problems)}. Give every part that was saved, or strict=False"
            )
        for name, objects in self._named(tensors="model" in parts).items():
            if name in parts and strict and len(parts[name]) != len(objects):
                raise EngineError(
                    f"{path} holds {len(parts[name])} of {name}, and {len(objects)} are given"
                )
        self._check_kinds(saved.get("about", {}), path)
        for model, state in zip(self.models, parts.get("model", []), strict=False):
            check_model(model, _shapes(state), path)
        for name, part in self.also.items():
            if isinstance(part, nn.Module) and name in parts:
                check_model(part, _shapes(parts[name][0]), path)
        for optimizer, state in zip(self.optimizers, parts.get("optimizer", []), strict=False):
            _check_groups(optimizer, state, path)
        for optimizer, known in zip(
            self.optimizers, saved.get("about", {}).get("optimizers", []), strict=False
        ):
            if (names := self._names_of(optimizer)) != known["names"]:
                _different_order(known["names"], names, path)

    def _check_kinds(self, about: dict[str, Any], path: Path) -> None:
        for optimizer, known in zip(self.optimizers, about.get("optimizers", []), strict=False):
            if known["type"] != type(optimizer).__name__:
                raise EngineError(
                    f"{path} holds the state of {known['type']}, and the optimizer is {type(optimizer).__name__}: their states mean different "
                    f"things. Build the same optimizer, or load the model alone with model=..., strict=False"
                )
        for scheduler, kind in zip(self.schedulers, about.get("schedulers", []), strict=False):
            if kind != type(scheduler).__name__:
                raise EngineError(
                    f"{path} holds the state of {kind}, and the scheduler is {type(scheduler).__name__}: build the same one"
                )

    def restore(self, parts: dict[str, Any], mine: dict[str, Any] | None, strict: bool) -> None:
        for name, objects in self._named(tensors="model" in parts).items():
            for part, state in zip(objects, parts.get(name, []), strict=strict):
                part.load_state_dict(state)
        if mine is None:
            return
        if self.stepper is not None and "stepper" in mine:
            self.stepper.load_state_dict(mine["stepper"])
        if self.loader is not None and "loader" in mine:
            if "own" in mine["loader"]:
                self.loader.load_state_dict(mine["loader"]["own"])
            else:
                restore_sources(self.loader, mine["loader"])
        if "rng" in mine:
            rng.restore(mine["rng"])  # last: building and loading may have drawn


def _shapes(state: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    return {key: v.shape for key, v in state.items() if isinstance(v, Tensor)}


def check_model(model: nn.Module, saved: Mapping[str, Sequence[int]], path: Path) -> None:
    """Names and shapes, before the first weight is copied."""
    state = model.state_dict()
    here = {key: tuple(v.shape) for key, v in state.items() if isinstance(v, Tensor)}
    there = {key: tuple(shape) for key, shape in saved.items()}
    problems = []
    if missing := sorted(here.keys() - there.keys()):
        problems.append(
            f"{some(missing)} {'is' if len(missing) == 1 else 'are'} not in the checkpoint"
        )
    if unknown := sorted(there.keys() - here.keys()):
        problems.append(f"{some(unknown)} {'is' if len(unknown) == 1 else 'are'} not in the model")
    shapes = [k for k in here.keys() & there.keys() if here[k] != there[k]]
    problems += [f"{k} has shape {there[k]} there and {here[k]} here" for k in sorted(shapes)[:3]]
    if problems:
        raise EngineError(
            f"{path} was saved from a different model: {'; '.join(problems)}. Nothing was loaded"
        )


def _check_groups(optimizer: Any, state: dict[str, Any], path: Path) -> None:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved = [len(group["params"]) for group in state["param_groups"]]
    if sizes != saved:
        raise EngineError(
            f"{path}: the optimizer was saved with parameter groups of {saved} parameters, and has groups of {sizes}. "
            "Build it as it was. Nothing was loaded"
        )
    options = optimizer.param_groups[0].keys() - state["param_groups"][0].keys() - {"initial_lr"}
    if options:
        raise EngineError(
            f"{path} holds the state of a different kind of optimizer, which has no {', '.join(sorted(options))}. Nothing was loaded"
        )


def _different_order(saved: list[str], here: list[str], path: Path) -> None:
    if sorted(saved) == sorted(here):
        first = next(i for i, (a, b) in enumerate(zip(saved, here, strict=True)) if a != b)
        raise EngineError(
            f"{path}: the optimizer has its parameters in a different order (number {first} was {saved[first]} and is {here[first]}), so each "
            "would get the momentum of a different one. Give them to the optimizer in the same order. Nothing was loaded"
        )
    raise EngineError(
        f"{path}: the optimizer was saved with different parameters: {some(sorted(set(saved) ^ set(here)))}. Nothing was loaded"
    )


def bare(model: nn.Module) -> nn.Module:
    """Without DDP, torch.compile and Fabric around it, so that a checkpoint fits with and without them."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(inner := getattr(model, "_forward_module", None), nn.Module):
            model = inner
        else:
            return model


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _named_objects(also: Mapping[str, Any] | None) -> dict[str, Any]:
    taken = {"model", "optimizer", "scheduler", "scaler", "loader", "stepper", "rng", "ema"}
    for name, part in (also or {}).items():
        if name in taken:
            raise EngineError(f"also={{{name!r}: ...}}: this name is taken; choose a different one")
        if not is_stateful(part):
            raise EngineError(
                f"also={{{name!r}: ...}} has no state_dict and load_state_dict: plain values belong in extra={{...}}"
            )
    return {
        name: part
        for given, what in (also or {}).items()
        for name, part in (_of_stepper(given, what) if isinstance(what, Stepper) else {given: what}).items()
    }  # fmt: skip


def _of_stepper(name: str, stepper: Stepper) -> dict[str, Any]:
    """A second Stepper, as of a GAN's generator: its own state_dict is without its model and optimizers."""
    if any(is_dtensor(p) for m in stepper.models for p in m.parameters()) or stepper.reads_data:
        raise EngineError(
            f"also={{{name!r}: ...}} is a Stepper with a sharded model, or with an over() of its own: save it in a folder of its own"
        )
    every = {
        "model": [bare(m) for m in stepper.models],
        "optimizer": stepper.optimizers,
        "scheduler": stepper.schedulers,
        "ema": [] if stepper.ema is None else [stepper.ema],
    }
    named = {f"{name}.{kind}.{i}": o for kind, objects in every.items() for i, o in enumerate(objects)}  # fmt: skip
    return {**named, name: stepper}


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
