"""The events of a run, bounded: everything at the start, later only what is new in kind.

A run of a million updates repeats itself. After the first updates, an update whose events look like ones already kept
is forgotten, and one that does not is kept together with the update before it and some that follow: whether it was one
odd update, or the program goes on like this now, only they can tell.
"""

from __future__ import annotations

from collections.abc import Hashable

from fallline.events import Event, Kind

__all__ = ["EventLog"]

KEPT_UPDATES = 100
KEPT_AFTER = 48  # updates that follow a new one
MOST_EVENTS = 6_000
# Facts that differ from update to update without meaning anything new.
_PASSING = frozenset({"index", "norm", "site"})


class EventLog:
    """Events in order. `structure` grows whenever something was kept that a rule could judge anew."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.updates = 0
        self.structure = 0
        self.cut = False  # events were dropped for want of room
        self._start = 0  # where the events since the last step begin
        self._known: set[tuple[int, ...]] = set()
        self._looks: dict[Hashable, int] = {}
        self._last: dict[int, tuple[Event, int]] = {}  # by place: the last event, and its look
        self._forgotten: list[Event] = []
        self._after = 0  # how many of the next updates are kept whatever they look like

    def add(self, event: Event) -> None:
        self.events.append(event)
        if event.kind is Kind.STEP:
            self._close()
        elif len(self.events) > MOST_EVENTS + 2_000:
            # a program that never steps: keep its beginning
            self.cut = True
            del self.events[MOST_EVENTS:]
            self._start = min(self._start, len(self.events))

    def repeat(self, segment: list[Event]) -> None:
        """An update like this known one, which nobody told again."""
        self.updates += 1
        if self._after and self._follows():
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
                and same.facts == event.facts
            ):
                return number
        look = _look(event)
        if len(self._looks) > MOST_EVENTS:
            return hash(look)
        number = self._looks.setdefault(look, len(self._looks))
        self._last[id(event.at)] = (event, number)
        return number


def _look(event: Event) -> Hashable:
    facts = event.facts
    if event.kind is Kind.BATCH:
        shown: Hashable = facts.get("last")
    elif _PASSING.isdisjoint(facts):
        shown = tuple(facts.values())
    else:
        shown = tuple(v for k, v in facts.items() if k not in _PASSING)
    return (
        event.kind,
        event.at.path,
        event.at.line,
        event.optimizer,
        event.model,
        event.loader,
        shown,
    )
