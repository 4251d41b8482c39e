"""What happens on every training iteration, as opposed to now and then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from fallline.events.kinds import Backward, Batch, Event, GradRead, Opaque, Step
from fallline.events.trace import Trace

__all__ = ["on_every_iteration"]


def on_every_iteration(trace: Trace, events: Iterable[Event]) -> bool:
    """Whether these events fall into each of several training iterations in a row: a log every 100 steps does not."""
    if any("%" in setting and setting.endswith("is true") for setting in trace.settings):
        return False  # `step % args.log_freq == 0` of a step that is not known: not in each of them
    iterations = _iterations(trace)
    touched = {i for e in events if (i := _iteration_of(e, iterations)) is not None}
    if len(touched) < 2 or len(touched) != max(touched) - min(touched) + 1:
        return False
    # gradients that nothing steps with are looked at, plotted or attacked with: nobody trains
    spanned = trace.events[iterations[min(touched)][0] : iterations[max(touched)][1]]
    return any(map(_trains, spanned))


def _trains(event: Event) -> bool:
    """It steps; an opaque call may."""
    match event:
        case Step() | GradRead(what="use"):
            return True
        case Opaque(could=could):
            return could is None or "step" in could
    return False


def _iterations(trace: Trace) -> list[tuple[int, int]]:
    """Spans of event order from one batch (or backward, where no loader is seen) to the next, with a backward inside."""
    backwards = [e.order for e in trace.of(Backward)]
    starts = [e.order for e in trace.of(Batch)] or backwards
    spans = []
    for start, end in pairwise([*starts, len(trace.events)]):
        first = bisect_left(backwards, start)
        if first < len(backwards) and backwards[first] < end:
            spans.append((start, end))
    return spans


def _iteration_of(event: Event, iterations: list[tuple[int, int]]) -> int | None:
    index = bisect_left(iterations, (event.order, -1)) - 1
    return index if index >= 0 and event.order < iterations[index][1] else None
