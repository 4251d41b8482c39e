"""Whether all ranks save to the same place: asked before the first save, not found out at the resume."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from fallline.engine.agree import gather, rank, together, world_size
from fallline.engine.storage import in_words, prepare, temporary_for
from fallline.errors import EngineError

__all__ = ["check_shared"]

_SHARED: set[str] = set()  # folders that all ranks were seen to see


def check_shared(path: Path, *, by_all: bool) -> None:
    """Raise where ranks were given different folders, or do not see what rank 0 writes although each of them writes a part.

    `by_all`: every rank writes. If only rank 0 does, a folder on its own disk is a warning: it can be copied before it is loaded.
    """
    if world_size() == 1:
        return
    _check_same(gather(os.fspath(path.parent)))
    folder = os.path.abspath(path.parent)
    if gather(folder in _SHARED) == [True] * world_size():
        return
    blind = [number for number, sees in enumerate(_sees(path)) if not sees]
    if not blind:
        _SHARED.add(folder)
        return
    what = f"rank {blind[0]} does not see what rank 0 writes into {path.parent}"
    if by_all:
        raise EngineError(
            f"{what}, and each rank writes a part of this checkpoint: save to storage that all ranks share. Nothing was written"
        )
    if rank() == 0:
        warnings.warn(
            f"{what}: save to storage that all ranks share, or copy the checkpoint to every machine before you load it",
            stacklevel=4,
        )


def _check_same(folders: list[str]) -> None:
    other = next((i for i, folder in enumerate(folders) if folder != folders[0]), None)
    if other is not None:
        raise EngineError(
            f"the ranks save to different folders (rank 0: {folders[0]}, rank {other}: {folders[other]}), and a checkpoint belongs to all of them: "
            "give every rank the same one. Nothing was written"
        )


def _sees(path: Path) -> list[bool]:
    """Of each rank, whether it sees a file that rank 0 makes. Nobody has asked for its name before, so no cache can answer."""
    mark = gather(temporary_for(path))[0]

    def make() -> None:
        if rank() == 0:
            with in_words(path):
                prepare(path)
                mark.touch()

    together(make)
    seen = gather(mark.exists())
    if rank() == 0:
        mark.unlink(missing_ok=True)
    return seen
