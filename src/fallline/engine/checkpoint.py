"""Checkpoints that are complete and atomic: what is saved can be continued, and a crash while saving loses nothing.

One file for one checkpoint, `step-00001200.pt`: written under another name, flushed to the disk, then renamed. Whoever looks
sees the old one or the new one, never half of one. Sharded models (FSDP2, tensor parallel) are saved by
torch.distributed.checkpoint into a folder of that name, renamed in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fallline.engine.agree import gather, meet, rank, together, world_size
from fallline.engine.parts import Parts, check_model
from fallline.engine.plain import plain
from fallline.engine.saving import SAVER
from fallline.engine.shared_folder import check_shared
from fallline.engine.stepper import Stepper
from fallline.engine.storage import (
    NAME,
    checkpoints,
    publish,
    read,
    remove,
    there,
    write_through,
)
from fallline.errors import EngineError

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint", "wait_for_checkpoint"]


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
    also: Mapping[str, Any] | None = None,
    keep_last: int | None = 3,
    wait: bool = True,
) -> Path:
    """Save everything a run needs to continue with the same bits, and every source of randomness with it.

    A Stepper brings its model, optimizers, schedulers, scaler, average, open window and place in the data. Without one, give them by
    name. `also` takes more objects with a state_dict, by name, a second Stepper too; `extra` takes plain values. With several ranks call it on every rank;
    rank 0 writes. The last `keep_last` checkpoints are kept (None: all).

    `wait=False` returns as soon as the copy is under way, and a thread writes it; training continues. The checkpoint is there when
    `wait_for_checkpoint()` or the next save returns. If it failed, those raise, and nothing of it is visible.
    """
    meet("save_checkpoint")
    together(SAVER.finish)
    parts = Parts(stepper, model, optimizer, scheduler, scaler, loader, also)
    step = _checked_step(step, stepper)
    if keep_last is not None and keep_last < 1:
        raise EngineError(
            f"keep_last={keep_last}: the checkpoint just written would be deleted; give 1 or more, or None for all"
        )
    about = {
        "format": 1,
        "step": step,
        "epoch": epoch if epoch is not None else stepper.epoch if stepper else 0,
        "world": world_size(),
        "about": parts.describe(),
        "extra": plain(dict(extra or {}), "extra"),
    }
    path = Path(folder) / f"step-{step:08d}{'' if parts.sharded else '.pt'}"
    check_shared(path, by_all=parts.sharded)
    save = _save_sharded if parts.sharded else _save_whole
    save(path, parts, about, keep_last, wait)
    return path


def wait_for_checkpoint() -> Path | None:
    """Wait until the checkpoint that is being saved in the background is on disk, and return its path; None where there is none.

    Raises if it could not be written. With several ranks call it on every rank.
    """
    meet("wait_for_checkpoint")
    return together(SAVER.finish)


def _save_whole(
    path: Path, parts: Parts, about: dict[str, Any], keep_last: int | None, wait: bool
) -> None:
    ranks = gather(plain(parts.rank_state(), ""))

    def write(state: dict[str, Any]) -> None:
        with publish(path) as temporary:
            write_through(temporary, state)
        _keep(path, keep_last)

    def on_main() -> None:
        if rank() != 0:
            return
        state = about | {"parts": plain(parts.state(), ""), "ranks": ranks}
        if wait:
            write(state)
        else:
            _start(path, parts, state, write)

    together(on_main)


def _save_sharded(
    path: Path, parts: Parts, about: dict[str, Any], keep_last: int | None, wait: bool
) -> None:
    from fallline.engine.sharded import save_sharded, tensors_of

    group = None if wait else SAVER.group()
    state = {
        "tensors": tensors_of(parts.models, parts.optimizers),
        "shared": about | {"parts": plain(parts.state(tensors=False), "")},
        "mine": plain(parts.rank_state(), ""),
    }

    def write(state: dict[str, Any]) -> None:
        save_sharded(path, state["tensors"], state["shared"], state["mine"], group)
        if rank() == 0:
            _keep(path, keep_last)

    if wait:
        write(state)
    else:
        _start(path, parts, state, write)


def _start(path: Path, parts: Parts, state: dict[str, Any], write: Any) -> None:
    SAVER.start(path, state, list(parts.stable()), write)
    if parts.stepper is None:
        SAVER.wait_for_copy()  # nobody else knows when the optimizer will step


def _keep(newest: Path, keep_last: int | None) -> None:
    if keep_last is not None:
        for old in checkpoints(newest.parent)[:-keep_last]:
            if old != newest:
                remove(old)


def _checked_step(step: int | None, stepper: Stepper | None) -> int:
    if step is None:
        if stepper is None:
            raise EngineError(
                "save_checkpoint needs to know how far training is: give step=..., or the stepper"
            )
        return stepper.updates
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise EngineError(f"step={step!r}: give the number of updates made so far, 0 or more")
    return step


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    stepper: Stepper | None = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    also: Mapping[str, Any] | None = None,
    strict: bool = True,
) -> Checkpoint | None:
    """Restore the newest checkpoint of a folder, or the one named. None where the folder has none yet: a run that begins.

    Everything that was saved must be given a place and must fit, or nothing is loaded; `strict=False` allows parts without a place.
    All ranks load the same step, or none does. Nothing is executed from the file (`weights_only=True`).
    """
    meet("load_checkpoint")
    together(SAVER.finish)
    found = _agree_on(Path(path))
    if found is None:
        return None
    parts = Parts(stepper, model, optimizer, scheduler, scaler, loader, also)
    saved, mine = together(lambda: _read_and_check(found, parts, strict))
    if found.is_dir():
        from fallline.engine.sharded import load_tensors

        together(lambda: load_tensors(found, parts.models, parts.optimizers))
    parts.restore(saved["parts"], mine, strict)
    return Checkpoint(found, saved["step"], saved["epoch"], saved["extra"])


def _agree_on(path: Path) -> Path | None:
    """The checkpoint that every rank sees. A folder on one node's own disk is found out here."""
    named = NAME.fullmatch(path.name) is not None
    found = checkpoints(path)
    mine = (path if path.exists() else None) if named else (found[-1] if found else None)
    names = [None if p is None else p.name for p in gather(mine)]
    if len(set(names)) > 1:
        sees = "; ".join(
            f"rank {i} sees {name or 'no checkpoint'}" for i, name in enumerate(names[:4])
        )
        raise EngineError(
            f"the ranks do not see the same checkpoints in {path}: {sees}. Keep the folder on storage that all ranks share. Nothing was loaded"
        )
    if named and mine is None:
        raise EngineError(f"{path} does not exist; there {there(path.parent)}")
    return mine


def _read_and_check(
    path: Path, parts: Parts, strict: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if path.is_dir():
        from fallline.engine.sharded import read_sharded, shapes_of, whole

        saved, ranks = read_sharded(path)
        check_model(whole(parts.models), shapes_of(path), path)
    else:
        saved = read(path)
        ranks = saved.get("ranks", [])
    if not {"parts", "step", "epoch", "extra"} <= saved.keys():
        raise EngineError(f"{path} was not written by save_checkpoint, or part of it is missing")
    mine = _of_this_rank(ranks, saved.get("world", len(ranks)), strict)
    parts.check(saved, mine, strict, path)
    return saved, mine


def _of_this_rank(ranks: list[Any], saved_by: int, strict: bool) -> dict[str, Any] | None:
    """This rank's own state. On another number of ranks, the part of it that does not depend on their number."""
    if saved_by == world_size():
        return ranks[rank()] if len(ranks) == saved_by else ranks[0]  # type: ignore[no-any-return]
    mine = dict(ranks[min(rank(), len(ranks) - 1)])
    if rank() >= len(ranks):
        del mine["rng"]  # a rank that was not there keeps the randomness it was seeded with
    stepper = mine.get("stepper")
    if stepper is None and "loader" not in mine:
        return mine
    if stepper is not None and _moves(stepper) and "loader" not in mine:
        return mine
    if strict:
        raise EngineError(
            f"the checkpoint was saved by {saved_by} ranks and is loaded by {world_size()}, so the place in the data cannot be carried over. "
            "To carry it over, use an order of samples that does not depend on the number of ranks: ranks.loader(...) or fallline.Order, and save when "
            "stepper.updated is true. strict=False restores the rest"
        )
    return None


def _moves(stepper: dict[str, Any]) -> bool:
    position = stepper["position"]
    anywhere = position["batches"] == 0 or position.get("samples") is not None
    return anywhere and stepper["window"]["count"] == 0
