"""Where a watched run goes: its folder, which is made at the first update, and whoever listens to its rows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fallline.finding import Finding
from fallline.runs.update import UpdateRow
from fallline.watcher.provenance.secrets import masked_words
from fallline.watcher.recorder import Recorder

__all__ = ["Options", "Recording"]


@dataclass(slots=True)
class Options:
    """What `fallline run` or `fallline.watch` was asked for."""

    out: Path
    budget: float = 0.01
    guard: str = "skip"
    meta: dict[str, Any] = field(default_factory=dict)
    guard_limit: str = "aside"
    check_hardware: int = 0  # every so many updates; 0: never


class Recording:
    """Of one process. A program that trains nothing leaves nothing behind."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank, self.world = rank_and_world()
        self._began = time.time()  # loading data and making the model are part of a run
        self.recorder: Recorder | None = None
        self.live: Any = None  # a LiveLine, where a person looks at a terminal
        self.spikes: Callable[[UpdateRow], None] | None = None  # looks at each row
        self.loggers: Any = None  # a LogThread, where numbers go to other tools as well
        self.heartbeat: Any = None  # a Heartbeat
        self.beside = 0.0  # seconds of a processor that our own threads have taken
        self._opening = threading.Lock()

    def open(self) -> Recorder:
        """The recorder."""
        with self._opening:
            if self.recorder is None:
                self.rank, self.world = rank_and_world()
                self.recorder = self._begin()
            return self.recorder

    def _begin(self) -> Recorder:
        options = self.options
        meta = {"started": self._began, **options.meta, **accelerator()}
        if "argv" in meta:
            meta["argv"] = masked_words([str(word) for word in meta["argv"]])
        beat = self.heartbeat.beat if self.heartbeat is not None else None
        recorder = Recorder(
            options.out, self.rank, self.world, meta, listen=self._row, beat=beat, took=self.took
        )
        if self.loggers is not None and self.rank == 0:
            self.loggers.begin(recorder.folder)
        return recorder

    def took(self, seconds: float) -> None:
        """A thread of ours has worked for so long."""
        self.beside += seconds

    def _row(self, row: UpdateRow) -> None:
        if self.spikes is not None:
            self.spikes(row)
        if self.heartbeat is not None:
            self.heartbeat.row(row)
        if self.loggers is not None:
            self.loggers.row(row)
        if self.live is not None:
            self.live.row(row)

    def judged(self, findings: list[Finding], text: Any) -> None:
        """What the events show so far; written again each time: what the beginning seemed to show, the whole may not bear out."""
        if self.loggers is not None:
            self.loggers.judged(findings)
        if self.recorder is not None:
            self.recorder.describe("judged", text)


def accelerator() -> dict[str, str]:
    """The device's name, once the script itself has woken it: doing that for it would break its forks."""
    return {"accelerator": torch.cuda.get_device_name()} if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]


def rank_and_world() -> tuple[int, int]:
    """Of the process group where there is one, else what the launcher says."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1
