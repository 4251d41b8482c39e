"""The last few states of a run, to go back to: in host memory, or in files of this rank."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fallline.engine.gradients import is_dtensor
from fallline.engine.storage import (
    check_file,
    in_words,
    prepare,
    remove,
    temporary_for,
    write_through,
)
from fallline.errors import EngineError

__all__ = ["Snapshot", "Snapshots", "copied"]

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """A run after so many updates: the states of its parts, the Stepper's own, and every source of randomness."""

    update: int
    parts: list[Any]
    stepper: dict[str, Any]
    rng: dict[str, Any]


class Snapshots:
    """The newest `keep` of them. With a folder, tensors are written to disk by a thread and read when they are needed."""

    def __init__(self, keep: int, folder: Path | None = None) -> None:
        self._folder = folder
        self._kept: deque[tuple[Snapshot, _File | None]] = deque(maxlen=keep)
        self._thread: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest(self) -> int:
        """The update of the newest one."""
        return self._kept[-1][0].update

    def add(self, snapshot: Snapshot) -> None:
        if self._folder is None:
            self._kept.append((snapshot, None))
            return
        if self._kept and (last := self._kept[-1][1]) is not None:
            last.wait()  # one in flight, so that one copy at most is in memory
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="fallline-snapshot")
        tensors: list[Tensor] = []
        parts = _each(snapshot.parts, Tensor, lambda t: _set_aside(t, tensors))
        path = self._folder / f"step-{snapshot.update:08d}.pt"
        file = _File(path, tensors, self._thread)
        self._kept.append((replace(snapshot, parts=parts), file))

    def read(self) -> Snapshot:
        """The newest one, complete."""
        snapshot, file = self._kept[-1]
        if file is None:
            return snapshot
        tensors = file.read()
        return replace(
            snapshot, parts=_each(snapshot.parts, _Stored, lambda stored: stored.back(tensors))
        )

    def drop(self) -> None:
        """Forget the newest one."""
        self._kept.pop()

    def clear(self) -> None:
        self._kept.clear()


class _File:
    """The tensors of one snapshot. It goes when the snapshot goes, or the process.

    It keeps the name of a file that is still being written: if the run is killed, the next save or run in this folder removes it.
    """

    def __init__(self, path: Path, tensors: list[Tensor], thread: ThreadPoolExecutor) -> None:
        self._path = temporary_for(path)
        self._job: Future[None] = thread.submit(_write, self._path, tensors)
        self._warned = False
        weakref.finalize(self, remove, self._path)

    def wait(self) -> None:
        """A snapshot that could not be written is a warning, and an older one is used: training itself is well."""
        if (error := self._job.exception()) is not None and not self._warned:
            self._warned = True
            warnings.warn(f"a snapshot to go back to was not written: {error}", stacklevel=2)

    def read(self) -> list[Tensor]:
        self._job.result()
        if not self._path.exists():
            raise EngineError(f"the snapshot {self._path} is gone: something removed it")
        check_file(self._path)
        tensors: list[Tensor] = torch.load(self._path, map_location="cpu", weights_only=True)[
            "tensors"
        ]
        return tensors


def _write(path: Path, tensors: list[Tensor]) -> None:
    with in_words(path, path):
        prepare(path)
        write_through(path, {"tensors": tensors})


@dataclass(frozen=True)
class _Stored:
    """In the place of a tensor that is in the file; of a DTensor, the file has this rank's shard."""

    number: int
    like: Any = None  # mesh, placements, shape and stride of a DTensor

    def back(self, tensors: list[Tensor]) -> Tensor:
        if self.like is None:
            return tensors[self.number]
        from torch.distributed.tensor import DTensor

        mesh, placements, shape, stride = self.like
        local = tensors[self.number].to(mesh.device_type)
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=shape, stride=stride
        )


def _set_aside(tensor: Any, tensors: list[Tensor]) -> _Stored:
    number = len(tensors)
    if not is_dtensor(tensor):
        tensors.append(tensor)
        return _Stored(number)
    tensors.append(tensor.to_local().cpu())
    like = tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
    return _Stored(number, like)


def copied(state: Any) -> Any:
    """A copy in host memory; a DTensor's stays where it is."""
    return _each(state, Tensor, _copy)


def _copy(tensor: Tensor) -> Tensor:
    if is_dtensor(tensor):
        return tensor.detach().clone()
    return tensor.detach().to("cpu", copy=True)


def _each(value: Any, kind: type[T], change: Callable[[T], Any]) -> Any:
    """The same tree with each leaf of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, _each(item, kind, change)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_each(item, kind, change) for item in value)
    return value
