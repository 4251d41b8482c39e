"""From the events in the log to a `Trace` that rules can judge: names for parameter sets, and what only the whole shows."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fallline.events import Backward, Clip, Event, Forward, Object, Optimizer, Step, Trace
from fallline.replay.source import boundary_of, over_modules
from fallline.watcher.log import EventLog
from fallline.watcher.objects import Objects

__all__ = ["build_trace"]


def build_trace(log: EventLog, objects: Objects, *, complete: bool) -> Trace:
    """What was seen so far. The events in the log are left as they are."""
    with log.lock:
        events = [copy.copy(e) for e in log.events]
    used = {e.parameter_set for e in events if e.parameter_set is not None}
    held = dict(objects.optimizer_sets)  # training continues beside us
    names = objects.named_sets({*used, *held.values()})
    _module_clips(objects, events)
    for event in events:
        if event.parameter_set is not None:
            event.parameters, event.parameter_set = names[event.parameter_set], None
    described: list[Object] = []
    for name, thing in list(objects.described.items()):
        if isinstance(thing, Optimizer) and name in held:
            thing = dataclasses.replace(thing, parameters=names[held[name]])
        described.append(thing)
    for event in events:
        match event:
            case Forward():
                # the program is over: what no backward has reached by now never will be
                if event.followed and complete and event.used is None:
                    event.used = False
                event.followed = None
            case Step():
                event.boundary = boundary_of(event) or event.boundary
    return Trace(events, described, complete=complete and not log.cut, live=True)


def _module_clips(objects: Objects, events: list[Event]) -> None:
    """Several clips from one line before one step, each of other parameters: made module by module."""
    members = objects.members
    for clips, step in _by_step(events):
        by_line: dict[Any, list[Clip]] = {}
        for clip in clips:
            by_line.setdefault((clip.at.path, clip.at.line, clip.callers), []).append(clip)
        for group in by_line.values():
            if len({c.parameter_set for c in group}) < 2 and not over_modules(group[0].at):
                continue
            sets = [c.parameter_set for c in clips if c.parameter_set is not None]
            reached = Counter(p for number in sets for p in members(number))
            number = step.parameter_set
            held = members(number) if number is not None else frozenset()
            last = group[-1]
            last.left_out = objects.parameter_names(held - reached.keys())
            last.twice = objects.parameter_names(p for p, count in reached.items() if count > 1)


def _by_step(events: list[Event]) -> Iterator[tuple[list[Clip], Step]]:
    clips: list[Clip] = []
    for event in events:
        match event:
            case Clip():
                clips.append(event)
            case Step():
                if clips:
                    yield clips, event
                clips = []
            case Backward():
                clips = []
