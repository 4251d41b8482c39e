"""Checkpoints that are complete and atomic: what is saved can be gone on with, and a crash while saving loses nothing.

One file for one checkpoint, `step-00001200.pt`: written under another name, flushed to the disk, then renamed. Whoever looks
sees the old one or the new one, never half of one. Sharded models (FSDP2, tensor parallel) are saved by
torch.distributed.checkpoint into a folder of that name, renamed in the same way.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fallline.engine import rng
from fallline.engine.gradients import is_dtensor
from fallline.engine.plain import plain
from fallline.engine.position import capture_sources, is_stateful, restore_sources
from fallline.engine.stepper import Stepper
from fallline.errors import EngineError

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

_NAME = re.compile(r"step-(\d+)(\.pt)?")


@dataclass(frozen=True)
class Checkpoint:
    """Which checkpoint was loaded, and what was in it besides the objects that were restored."""

    path: Path
    step: int
    epoch: int
    extra: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    folder: str | os.PathLike[str],
    *,
    stepper: Stepper | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    step: int | None = None,
    epoch: int | None = None,
    extra: Mapping[str, Any] | None = None,
    keep_last: int | None = 3,
) -> Path:
    """Save everything a run needs to go on with the same bits, and every source of randomness with it.

    A Stepper brings its model, optimizers, schedulers, scaler, open window and place in the data. Without one, give them by
    name. With several ranks call it on every rank; rank 0 writes. The last `keep_last` checkpoints are kept (None: all).
    """
    parts = _Parts(stepper, model, optimizer, scheduler, scaler, loader)
    if step is None:
        if stepper is None:
            raise EngineError(
                "save_checkpoint needs to know how far training is: give step=..., or the stepper"
            )
        step = stepper.updates
    if keep_last is not None and keep_last < 1:
        raise EngineError(
            f"keep_last={keep_last}: the checkpoint just written would be deleted; give 1 or more, or None for all"
        )
    about = {
        "format": 1,
        "step": step,
        "epoch": epoch if epoch is not None else stepper.epoch if stepper else 0,
    }
    about["extra"] = plain(dict(extra or {}), "extra")
    mine = plain(parts.rank_state(), "")
    folder = Path(folder)
    if parts.sharded:
        from fallline.engine.sharded import save_sharded

        path = folder / f"step-{step:08d}"
        save_sharded(
            path,
            parts.models,
            parts.optimizers,
            about | {"parts": plain(parts.state(tensors=False), "")},
            mine,
        )
    else:
        path = folder / f"step-{step:08d}.pt"
        ranks = _gather(mine)
        _on_main(lambda: _write(path, about | {"parts": plain(parts.state(), ""), "ranks": ranks}))
    if keep_last is not None and _rank() == 0:
        for old in checkpoints(folder)[:-keep_last]:
            if old != path:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
    return path


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    stepper: Stepper | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    strict: bool = True,
) -> Checkpoint | None:
    """Restore the newest checkpoint of a folder, or the one named. None where the folder has none yet: a run that begins.

    Everything that was saved must be given a place, or it would silently not be restored; `strict=False` allows it.
    Nothing is executed from the file (`weights_only=True`).
    """
    path = Path(path)
    if not _NAME.fullmatch(path.name):
        found = checkpoints(path)
        if not found:
            return None
        path = found[-1]
    if not path.exists():
        raise EngineError(f"{path} does not exist; there {_there(path.parent)}")
    parts = _Parts(stepper, model, optimizer, scheduler, scaler, loader)
    if path.is_dir():
        from fallline.engine.sharded import load_sharded

        saved, mine = load_sharded(path, parts.models, parts.optimizers)
    else:
        saved = read(path)
        mine = _of_this_rank(saved["ranks"], strict)
    parts.restore(saved["parts"], mine, strict, path)
    return Checkpoint(path, saved["step"], saved["epoch"], saved["extra"])


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), p) for p in folder.iterdir() if (match := _NAME.fullmatch(p.name))]
    return [p for _, p in sorted(found)]


def read(path: Path) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if saved.get("format") != 1:
            raise EngineError(f"{path} was not written by save_checkpoint")
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).partition(chr(10))[0]}); there {_there(path.parent)}"
        ) from error
    return saved


class _Parts:
    """The objects of a run, by name, and how each is saved and restored."""

    def __init__(
        self,
        stepper: Stepper | None,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        scaler: Any,
        loader: Any,
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
        self.sharded = any(is_dtensor(p) for m in self.models for p in m.parameters())
        if not self.models:
            raise EngineError("a checkpoint without a model: give stepper=... or model=...")

    def _named(self, tensors: bool = True) -> dict[str, list[Any]]:
        every = {"scheduler": self.schedulers, "scaler": self.scalers}
        if tensors:
            every = {"model": self.models, "optimizer": self.optimizers, **every}
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

    def restore(
        self, saved: dict[str, Any], mine: dict[str, Any] | None, strict: bool, path: Path
    ) -> None:
        here = self._named(tensors="model" in saved)
        here_too = {
            name
            for name, part in (("stepper", self.stepper), ("loader", self.loader))
            if part is not None
        }
        in_file = set(saved) | (set(mine) - {"rng"} if mine else set())
        if strict and in_file != set(here) | here_too:
            missing, unknown = (
                sorted(in_file - set(here) - here_too),
                sorted((set(here) | here_too) - in_file),
            )
            raise EngineError(
                f"{path}: "
                + "; ".join(
                    [f"{name} was saved and would not be restored" for name in missing]
                    + [f"{name} is not in the checkpoint" for name in unknown]
                )
                + ". Give every part that was saved, or strict=False"
            )
        for name, objects in here.items():
            for part, state in zip(objects, saved.get(name, []), strict=strict):
                part.load_state_dict(state)
        if mine is None:
            return
        if self.stepper is not None and "stepper" in mine:
            self.stepper.load_state_dict(mine["stepper"])
        if self.loader is not None and "loader" in mine:
            if is_stateful(self.loader):
                self.loader.load_state_dict(mine["loader"]["own"])
            else:
                restore_sources(self.loader, mine["loader"])
        rng.restore(mine["rng"])  # last: building and loading may have drawn


def bare(model: nn.Module) -> nn.Module:
    """Without DDP and torch.compile around it, so that a checkpoint fits with and without them."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _write(path: Path, saved: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_left_overs(path.parent)
    temporary = path.parent / f".{path.name}.tmp"
    try:
        write_through(temporary, saved)  # the content first, then the name that promises it
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EngineError(
            f"cannot write {path}: {error.strerror or error}. The previous checkpoint is untouched"
        ) from error


def clear_left_overs(folder: Path) -> None:
    """What a save that was killed has left behind."""
    for left_over in folder.glob(".step-*.tmp"):
        shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()


def write_through(path: Path, saved: dict[str, Any]) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        torch.save(saved, file)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _gather(mine: Any) -> list[Any]:
    """Every rank's own state, on rank 0."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    ranks: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, ranks)
    return ranks or []


def _on_main(write: Callable[[], None]) -> None:
    """Rank 0 writes; the others wait for it, and hear of a failure instead of going on without a checkpoint."""
    failure: list[str | None] = [None]
    if _rank() == 0:
        try:
            write()
        except EngineError as error:
            failure[0] = str(error)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(failure)
    if failure[0] is not None:
        raise EngineError(failure[0])


def _of_this_rank(ranks: list[Any], strict: bool) -> dict[str, Any] | None:
    world = dist.get_world_size() if dist.is_initialized() else 1
    if len(ranks) == world:
        return ranks[_rank()]  # type: ignore[no-any-return]
    if strict:
        raise EngineError(
            f"the checkpoint was saved by {len(ranks)} ranks and is loaded by {world}: the place in the data and the randomness cannot be "
            "the same. strict=False restores the rest"
        )
    return None


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _there(folder: Path) -> str:
    names = [p.name for p in checkpoints(folder)]
    return f"are {', '.join(names)}" if names else "are no checkpoints"
