"""The events of a run, bounded: everything at the start, later only what is new in kind.

A run of a million updates repeats itself. After the first updates, an update whose events look like ones already kept
is forgotten, and one that does not is kept together with the update before it and some that follow: whether it was one
odd update, or the program continues like this now, only they can show.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from fallline.events import Batch, Epoch, EpochEnd, Event, Forward, Mode, Step
from fallline.location import Location

__all__ = ["EventLog"]

KEPT_UPDATES = 100
KEPT_AFTER = 48  # updates that follow a new one
MOST_EVENTS = 6_000
# Calls of one kind from one line between two steps: an evaluation of ten thousand batches says no more than this many.
REPEATS = 300
_REPEATED = frozenset({Forward, Batch, Epoch, EpochEnd, Mode})


class EventLog:
    """Events in order. `structure` grows whenever something was kept that a rule could judge again."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lock = threading.Lock()  # events are read beside the training thread
        self.updates = 0
        self.structure = 0
        self.cut = False  # events were dropped for want of room
        self._start = 0  # where the events since the last step begin
        self._known: set[tuple[int, ...]] = set()
        self._looks: dict[Hashable, int] = {}
        self._last: dict[int, tuple[Event, int]] = {}  # by place: the last event, and its look
        self._forgotten: list[Event] = []
        self._after = 0  # how many of the next updates are kept whatever they look like
        self._repeats: dict[
            tuple[type[Event], int], int
        ] = {}  # by kind and place, since the last step

    def add(self, event: Event) -> None:
        key = (type(event), id(event.at))
        count = self._repeats[key] = self._repeats.get(key, 0) + 1
        if count > REPEATS and type(event) in _REPEATED:
            return
        with self.lock:
            self._append(event)

    def repeats(self, kind: type[Event], at: Location) -> int:
        """How many events of this kind came from this place since the last step."""
        return self._repeats.get((kind, id(at)), 0)

    def drop(self, others: set[int]) -> None:
        """Forget these events, by id."""
        with self.lock:
            self.events[:] = [e for e in self.events if id(e) not in others]

    def cut_off(self, first: int) -> None:
        """Forget the events from this one on: a closure that runs again makes them again."""
        with self.lock:
            del self.events[first:]

    def _append(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Step):
            self._close()
            self._repeats.clear()
        elif len(self.events) > MOST_EVENTS + 2_000:
            # a program that never steps: keep its beginning
            self.cut = True
            del self.events[MOST_EVENTS:]
            self._start = min(self._start, len(self.events))

    def repeat(self, segment: list[Event]) -> None:
        """An update like this known one, which was not recorded again."""
        self.updates += 1
        if self.updates <= KEPT_UPDATES or (self._after and self._follows()):
            self.events += segment
            self._start = len(self.events)
        else:
            self._forgotten = segment

    def _close(self) -> None:
        segment = self.events[self._start :]
        self.updates += 1
        look = tuple(map(self._look, segment))
        new = look not in self._known
        if new and len(self._known) < 2_000:
            self._known.add(look)
        if self.updates <= KEPT_UPDATES:
            self.structure += new
        elif new and len(self.events) < MOST_EVENTS:
            self.events[self._start : self._start] = self._forgotten
            self._forgotten = []
            self._after = KEPT_AFTER
            self.structure += 1
        elif new or not self._follows():
            self.cut = self.cut or new
            del self.events[self._start :]
            self._forgotten = segment
        self._start = len(self.events)

    def _follows(self) -> bool:
        """Whether this update, not a new one, is kept because a new one came before it; half the room is not for these."""
        if self._after == 0 or len(self.events) > MOST_EVENTS // 2:
            return False
        self._after -= 1
        self.structure += self._after == 0  # now it can be judged
        return True

    def _look(self, event: Event) -> int:
        """A number for how an event looks; the last one from the same line most likely looked the same."""
        last = self._last.get(id(event.at))
        if last is not None:
            same, number = last
            if (
                same.kind is event.kind
                and same.optimizer == event.optimizer
                and same.model == event.model
                and same.loader == event.loader
                and same.same_facts(event)
            ):
                return number
        look = _look(event)
        if len(self._looks) > MOST_EVENTS:
            return hash(look)
        number = self._looks.setdefault(look, len(self._looks))
        self._last[id(event.at)] = (event, number)
        return number


def _look(event: Event) -> Hashable:
    if isinstance(event, Batch):
        shown: Hashable = event.last
    else:
        shown = tuple(event.known().items())
    return (
        event.kind,
        event.at.path,
        event.at.line,
        event.optimizer,
        event.model,
        event.loader,
        shown,
    )
