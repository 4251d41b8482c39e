"""One update of one optimizer, as it is recorded. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fallline.location import Location
from fallline.runs.samples import Sample

__all__ = ["UpdateRow"]


@dataclass(slots=True)
class UpdateRow:
    """One optimizer update as it happened. Numbers may be 0-dim tensors: they are read in the background."""

    index: int  # the updates of this optimizer, counted from 0; skipped ones count
    optimizer: str = "optimizer#1"
    at: Location | None = None  # the user's line of the step
    loss_at: Location | None = None  # the user's line of the (last) backward
    time: float = 0.0  # time.time(); 0: now
    loss: Any = (
        None  # tensor or float; with accumulation the mean over the window as the loop scales it
    )
    lr: float | None = None
    scale: Any = None  # the loss scale in use at backward; None without a scaler
    skipped: Any = False  # by the scaler or the guard
    clip_norm: Any = None  # the norm that clipping measured, before it clipped
    clip_threshold: float | None = None
    grad_norm: Any = None  # of all gradients, without the loss scale, where it was measured
    # data, forward, backward, step, other: all of the time since the update before. Empty: not measured
    seconds: Any = field(default_factory=dict)
    memory: int | None = None  # bytes: of live tensors on the accelerator, of the process on a CPU
    graphs: int | None = None  # autograd graphs of past updates that are still alive
    micro_batches: int = 1
    all_reduces: int | None = None
    clip_at: Location | None = None  # the user's line of the clip
    batch_at: Location | None = None  # the user's line that takes batches from a loader
    sample: Sample | None = None  # Numbers.after_step fills these two
    fingerprint: Any = None
