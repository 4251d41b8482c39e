"""What comes before and after an event, without copying a long run's events."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Event, Trace

__all__ = ["following", "preceding"]


def following(trace: Trace, event: Event) -> Iterator[Event]:
    """The events after this one, in order."""
    for index in range(event.order + 1, len(trace.events)):
        yield trace.events[index]


def preceding(trace: Trace, event: Event) -> Iterator[Event]:
    """The events before this one, the nearest first."""
    for index in range(event.order - 1, -1, -1):
        yield trace.events[index]
