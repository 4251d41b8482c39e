"""Checkpoints of sharded models: torch.distributed.checkpoint writes them, every rank its own part; here they become atomic."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from fallline.engine.checkpoint import clear_left_overs, read, sync_folder, write_through

__all__ = ["load_sharded", "save_sharded"]


def save_sharded(
    path: Path,
    models: list[nn.Module],
    optimizers: list[Optimizer],
    shared: dict[str, Any],
    mine: dict[str, Any],
) -> None:
    """Every rank writes into a folder under another name; when all are done, rank 0 gives it its own."""
    temporary = path.parent / f".{path.name}.tmp"
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_left_overs(path.parent)
        temporary.mkdir()
        write_through(temporary / "shared.pt", shared)
    dist.barrier()  # the folder is there
    save(_tensors(models, optimizers), checkpoint_id=temporary)
    write_through(temporary / f"rank-{dist.get_rank():05d}.pt", {"format": 1, "rank": mine})
    dist.barrier()  # everybody has written
    if dist.get_rank() == 0:
        sync_folder(temporary)
        replaced = path.parent / f".{path.name}.replaced.tmp"
        if path.exists():
            path.replace(replaced)  # two renames, nothing slow between them
        temporary.replace(path)
        sync_folder(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    dist.barrier()  # it has its name


def load_sharded(
    path: Path, models: list[nn.Module], optimizers: list[Optimizer]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Restores models and optimizers, also on another number of ranks, and returns the rest."""
    state = _tensors(models, optimizers)
    load(state, checkpoint_id=path)
    for i, model in enumerate(models):
        set_state_dict(
            model,
            optimizers if i == 0 else [],
            model_state_dict=state[f"model.{i}"],
            optim_state_dict=state["optimizer"] if i == 0 else {},
        )
    mine = path / f"rank-{dist.get_rank():05d}.pt"
    return read(path / "shared.pt"), read(mine)["rank"] if mine.exists() else None


def _tensors(models: list[nn.Module], optimizers: list[Optimizer]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for i, model in enumerate(models):
        state[f"model.{i}"], held = get_state_dict(model, optimizers if i == 0 else [])
        if i == 0:
            state["optimizer"] = held
    return state
