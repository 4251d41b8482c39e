"""Saving without waiting: the run is copied to host memory while training continues, and a thread writes the copy.

One save is in flight at most, and its copy is the only one: the next save waits for it. Parameters and optimizer states change only in
a step, so they are copied while the next forward and backward passes run, and the step waits for the copy, on a GPU without the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fallline.engine.staging import Staging, storage_of
from fallline.errors import EngineError

__all__ = ["SAVER", "Saver"]


class Saver:
    """The one background save of this process."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._path: Path | None = None
        self._queued = threading.Event()  # every copy is made, or queued on its stream
        self._copied: Any = None  # the device's event for that
        self._staging: Staging | None = None
        self._stream: Any = None
        self._group: Any = None

    def start(
        self,
        path: Path,
        state: dict[str, Any],
        stable: Iterable[Tensor],
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """Copy the state and write it, in a thread. `stable`: what stays as it is until `before_step`; the rest is copied now."""
        assert self._job is None, "finish() first"
        device = next((t.device for t in stable if t.is_cuda), torch.device("cpu"))
        state = _copy_rest(state, {storage_of(t) for t in stable})
        ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="fallline-save")
        self._queued.clear()
        self._copied = None
        self._path = path
        self._job = self._thread.submit(self._run, state, device, ready, write)

    def _run(
        self, state: dict[str, Any], device: torch.device, ready: Any, write: Callable[[Any], None]
    ) -> None:
        try:
            staged = self._stage(state, device, ready)
        finally:
            self._queued.set()
        if self._copied is not None:
            self._copied.synchronize()  # in this thread: training does not wait for it
        write(staged)

    def _stage(self, state: dict[str, Any], device: torch.device, ready: Any) -> dict[str, Any]:
        if self._staging is None:
            self._staging = Staging(pinned=device.type == "cuda")
        if device.type != "cuda":
            return self._staging(state, False)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            staged = self._staging(state, True)
        self._copied = self._stream.record_event()
        return staged

    def before_step(self) -> None:
        """Before parameters change: the copy must be complete. On a GPU the step waits on the device, not the host."""
        if self._job is None or self._job.done():
            return
        self._queued.wait()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait_for_copy(self) -> None:
        self._queued.wait()
        if self._copied is not None:
            self._copied.synchronize()

    def finish(self) -> Path | None:
        """Wait for the save in flight. Raises if it failed: nothing of it is visible then."""
        job, self._job = self._job, None
        if job is None:
            return None
        try:
            job.result()
        except Exception as error:
            raise EngineError(
                f"the checkpoint {self._path} that was being saved in the background was not written: {error}"
            ) from error
        return self._path

    def group(self) -> Any:
        """A process group of its own for the thread: its messages must not mix with those of training."""
        if self._group is None or self._group[0] is not dist.group.WORLD:
            self._group = dist.group.WORLD, dist.new_group(backend="gloo")
        return self._group[1]


def _copy_rest(value: Any, stable: set[int]) -> Any:
    """Copies what may change at any moment: buffers, schedules, numbers in lists."""
    if isinstance(value, Tensor):
        return value if storage_of(value) in stable else value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy_rest(item, stable) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy_rest(item, stable) for item in value)
    return value


SAVER = Saver()
