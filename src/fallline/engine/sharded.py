"""Checkpoints of sharded models: torch.distributed.checkpoint writes them, every rank its own part; here they become atomic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from fallline.engine.agree import gather, rank, together, world_size
from fallline.engine.storage import (
    MANIFEST,
    check_files,
    checksums,
    commit,
    in_words,
    prepare,
    read,
    remove,
    temporary_for,
    write_through,
)

__all__ = ["load_tensors", "read_sharded", "save_sharded", "shapes_of", "tensors_of", "whole"]


def save_sharded(
    path: Path,
    tensors: dict[str, Any],
    shared: dict[str, Any],
    mine: dict[str, Any],
    group: Any = None,
) -> None:
    """Every rank writes into a folder under another name; when all are done, rank 0 gives it its own. If one fails, all say so."""
    temporary = gather(temporary_for(path), group)[0]
    try:
        together(lambda: _begin(path, temporary, shared), group)
        sums = together(lambda: _write(path, temporary, tensors, mine, group), group)
        every = {name: s for part in gather(sums, group) for name, s in part.items()}
        together(lambda: _finish(path, temporary, every), group)
    except BaseException:
        if rank() == 0:
            remove(temporary)
        raise


def _begin(path: Path, temporary: Path, shared: dict[str, Any]) -> None:
    if rank() == 0:
        with in_words(path, temporary):
            prepare(path)
            temporary.mkdir()
            write_through(temporary / "shared.pt", shared)


def _write(
    path: Path, temporary: Path, tensors: dict[str, Any], mine: dict[str, Any], group: Any
) -> dict[str, list[int]]:
    with in_words(path):
        with _as_exception():
            save(tensors, checkpoint_id=temporary, process_group=group)
        own = temporary / f"rank-{rank():05d}.pt"
        write_through(own, {"format": 1, "rank": mine})
        return checksums([own, *temporary.glob(f"__{rank()}_*.distcp")])


@contextmanager
def _as_exception() -> Iterator[None]:
    """torch's CheckpointException is not an Exception, and its text is every rank's traceback: the first rank's reason is enough."""
    try:
        yield
    except CheckpointException as error:
        number, (reason, _) = next(iter(error.failures.items()))
        raise RuntimeError(f"rank {number}: {reason}") from reason


def _finish(path: Path, temporary: Path, sums: dict[str, list[int]]) -> None:
    if rank() == 0:
        with in_words(path, temporary):
            sums |= checksums([temporary / "shared.pt", temporary / ".metadata"])
            (temporary / MANIFEST).write_text(json.dumps(sums), encoding="utf-8")
            commit(temporary, path)


def read_sharded(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is not sharded: the shared part, and every rank's own. The files are compared with their checksums, each by one rank."""
    check_files(path, rank(), world_size())
    shared = read(path / "shared.pt")
    files = sorted(path.glob("rank-*.pt"))
    if shared.get("world", len(files)) == world_size():
        files = [path / f"rank-{rank():05d}.pt"]
    return shared, [read(file)["rank"] for file in files]


def shapes_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every saved tensor of the model, from the checkpoint's own table."""
    table = FileSystemReader(path).read_metadata().state_dict_metadata
    prefix = "model.0."
    return {
        key.removeprefix(prefix): tuple(entry.size)
        for key, entry in table.items()
        if key.startswith(prefix) and hasattr(entry, "size")
    }


def load_tensors(path: Path, models: list[nn.Module], optimizers: list[Optimizer]) -> None:
    """Restores models and optimizers, also on another number of ranks."""
    state = tensors_of(models, optimizers)
    with _as_exception():
        load(state, checkpoint_id=path)
    set_state_dict(
        whole(models),
        optimizers,
        model_state_dict=state["model.0"],
        optim_state_dict=state["optimizer"],
    )


def tensors_of(models: list[nn.Module], optimizers: list[Optimizer]) -> dict[str, Any]:
    model, optimizer = get_state_dict(whole(models), optimizers)
    return {"model.0": model, "optimizer": optimizer}


def whole(models: list[nn.Module]) -> nn.Module:
    """Several models as one, so that each optimizer finds its parameters by name."""
    return models[0] if len(models) == 1 else nn.ModuleList(models)
