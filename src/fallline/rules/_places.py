"""Where to tell a finding about two events: in the function that both were called from."""

from __future__ import annotations

from fallline.events import Event
from fallline.location import Location

__all__ = ["seen_from"]


def seen_from(event: Event, other: Event) -> Location:
    """The event as it looks from the innermost function that leads to both: itself, or the call that led to it.

    A helper that runs `loss.backward()` for everyone is not where something is missing.
    """
    frames = (*event.callers, event.at)
    others = (*other.callers, other.at)
    return next((a for a, b in zip(frames, others, strict=False) if a != b), event.at)
