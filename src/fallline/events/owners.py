"""Whose gradients a clip changes, and whether it comes at the right time."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from fallline.events.kinds import (
    Backward,
    Batch,
    Clip,
    Epoch,
    Event,
    Forward,
    GradWrite,
    Opaque,
    Step,
)
from fallline.events.trace import Trace
from fallline.events.windows import clears

__all__ = ["acting", "misdirected", "owners", "position"]


def acting(trace: Trace, event: Event) -> list[str | None]:
    """The optimizers in use when this happens, without those that are done or have not begun yet."""
    phases = _phases(trace).items()
    return [o for o, (start, end) in phases if max(start, _made(trace, o)) <= event.order < end]


def _made(trace: Trace, optimizer: str | None) -> int:
    """How many events there were before it was made."""
    known = trace.optimizer(optimizer)
    return known.born if known is not None else 0


@lru_cache(maxsize=2)  # asked for at every clip of one trace
def _phases(trace: Trace) -> dict[str | None, tuple[int, float]]:
    """From where to where each optimizer is in use.

    Those whose steps alternate share a phase, and so does one with a single step: one round of a GAN is not a sequence.
    """
    spans: dict[str | None, tuple[int, int]] = {}
    for step in trace.of(Step):
        first, _ = spans.get(step.optimizer, (step.order, 0))
        spans[step.optimizer] = (first, step.order)
    starts: dict[str | None, int] = {}
    for optimizer, (first, final) in spans.items():
        over = [end for begin, end in spans.values() if begin < end < first < final]
        begun = trace.after(trace.events[max(over)]).of(Epoch, Batch, Forward, Backward, Step).first if over else None  # fmt: skip
        starts[optimizer] = begun.order if begun is not None else 0
    return {
        o: (starts[o], min((s for s in starts.values() if s > last), default=float("inf")))
        for o, (_, last) in spans.items()
    }


def owners(trace: Trace, clip: Clip) -> list[str | None]:
    """The optimizers whose gradients a clip changes; empty where that is not certain."""
    candidates = acting(trace, clip)
    if len(candidates) == 1:
        return candidates
    if clip.optimizer is not None:
        return [clip.optimizer]
    held = {o: trace.held_by(o) for o in candidates}
    if not clip.parameters or not all(held.values()):
        return []
    return [o for o, mine in held.items() if mine and not mine.isdisjoint(clip.parameters)]


def misdirected(trace: Trace, clip: Clip) -> Step | None:
    """The step that follows a clip although the clipped parameters are not among those of its optimizer."""
    step = trace.after(clip).until(Backward).of(Step).first
    mine = trace.held_by(step.optimizer) if step is not None else None
    if step is None or mine is None or not clip.parameters or not mine.isdisjoint(clip.parameters):
        return None
    made = trace.before(clip).until(Step, Opaque).of(Backward)
    return step if made.where(lambda b: trace.concerns(b, step.optimizer)) else None


Position = Literal["fresh", "after", "before", "unknown"]


def position(trace: Trace, clip: Clip, optimizer: str | None) -> tuple[Position, Step | None]:
    """Where a clip is: on fresh gradients, after the step that used them, or before any backward.

    With "after" comes the step. A new batch or forward pass since that step means that the clip belongs to the
    next update: it is too early, not too late.
    """
    cleared = moved_on = False
    for event in trace.before(clip):
        match event:
            case Opaque():
                return "unknown", None
            case Step(optimizer=stepped) if stepped == optimizer:
                return ("before", None) if moved_on else ("after", event)
            case Batch():
                moved_on = True
            case Forward() if event.grad is not False:
                moved_on = True
            case GradWrite() if clears(trace, event, optimizer):
                return "fresh", None
            case _ if clears(trace, event, optimizer):
                cleared = True
            case Backward() | GradWrite() if not cleared and trace.concerns(event, optimizer):
                return "fresh", None
    return "before", None
