"""From the events of a session to a `Trace` that rules can judge: names for parameter sets, and what only the whole shows."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fallline.events import Event, Kind, Object, Optimizer, Trace
from fallline.replay.source import boundary_of, over_modules

if TYPE_CHECKING:
    from fallline.watcher.session import Session

__all__ = ["build_trace"]


def build_trace(session: Session, *, complete: bool) -> Trace:
    """What the session has seen so far. The session's own events are left as they are."""
    with session._lock:
        events = [copy.copy(e) for e in session.log.events]
    objects = session.objects
    used = {e.facts["parameters"] for e in events if isinstance(e.facts.get("parameters"), int)}
    held = dict(objects.optimizer_sets)  # training goes on beside us
    names = objects.named_sets({*used, *held.values()})
    _module_clips(session, events)
    for event in events:
        number = event.facts.get("parameters")
        if isinstance(number, int):
            event.facts["parameters"] = names[number]
    described: list[Object] = []
    for name, thing in list(objects.described.items()):
        if isinstance(thing, Optimizer) and name in held:
            thing = dataclasses.replace(thing, parameters=names[held[name]])
        described.append(thing)
    for event in events:
        # the program is over: what no backward has reached by now never will be
        if event.facts.pop("followed", False) and complete:
            event.facts.setdefault("used", False)
        if event.kind is Kind.STEP:
            boundary = boundary_of(event)
            if boundary is not None:
                event.facts["boundary"] = boundary
    return Trace(events, described, complete=complete and not session.log.cut, live=True)


def _module_clips(session: Session, events: list[Event]) -> None:
    """Several clips from one line before one step, each of other parameters: made module by module."""
    members = session.objects.members
    for clips, step in _by_step(events):
        by_line: dict[Any, list[Event]] = {}
        for clip in clips:
            by_line.setdefault((clip.at.path, clip.at.line, clip.callers), []).append(clip)
        for group in by_line.values():
            if len({c.facts.get("parameters") for c in group}) < 2 and not over_modules(
                group[0].at
            ):
                continue
            for clip in group:
                clip.facts["per_module"] = True
            reached = Counter(
                p
                for c in clips
                if c.facts.get("parameters") is not None
                for p in members(c.facts["parameters"])
            )
            held = members(step.facts["parameters"]) if "parameters" in step.facts else frozenset()
            last = group[-1].facts
            last["left_out"] = session.objects.parameter_names(held - reached.keys())
            last["twice"] = session.objects.parameter_names(
                p for p, count in reached.items() if count > 1
            )


def _by_step(events: list[Event]) -> Iterator[tuple[list[Event], Event]]:
    clips: list[Event] = []
    for event in events:
        if event.kind is Kind.CLIP:
            clips.append(event)
        elif event.kind is Kind.STEP:
            if clips:
                yield clips, event
            clips = []
        elif event.kind is Kind.BACKWARD:
            clips = []
