"""An update that goes like the ones before it is not told again: the same calls, in the same order, from the same places.

Telling an event means walking the stack, reading facts off graphs and objects, and keeping it: some hundred microseconds an
update, for what the log then throws away because it knows it. So once an update has been told often enough, each call is
only compared with the one that came at this point before (what kind, on which object, from which instruction). The first
call that differs wakes us: what was let pass is told after all, and this one in full. Facts that no call shows, such as a
divisor, are looked at in one update of 256.
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

from fallline.events import Event
from fallline.watcher.log import KEPT_UPDATES

if TYPE_CHECKING:
    from fallline.watcher.taps_events import Teller

__all__ = ["Routine"]

OFTEN = 32  # times that an update was told in full
IN_FULL = 256  # then every so many are
MOST = 256  # ways that updates of one program go

Key = tuple[Any, ...]
_NONE: Key = ()


class Routine:
    """Whether the update in progress is one that is well known."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self.resting = False  # so far nothing in this update was new
        self.events: list[Event] = []  # of the update that is expected now
        self.keys: list[Key] = [_NONE]  # its calls, and what no call is like
        self.at = 0  # how many of them have come
        self._told: list[tuple[Key, Event]] = []  # of the update in progress, where it is told
        self._call: Key = ()
        self._often: dict[tuple[Key, ...], int] = {}

    def expected(self, kind: str, thing: Any, frame: FrameType, also: Any = None) -> Event | None:
        """The event that this call was the last time; None where it has to be recorded. `frame`: that calls torch.

        What describes a call: its kind, the object, code, instruction, and what else counts.
        """
        key = (kind, id(thing), id(frame.f_code), frame.f_lasti, also)
        if self.resting and self.keys[self.at] == key:
            self.at += 1
            return self.events[self.at - 1]
        self.differs(key)
        return None

    def differs(self, key: Key) -> None:
        """This call has to be told."""
        if self.resting:
            self.wake()
        self._call = key

    def tell(self, event: Event) -> None:
        """This event is told. It may be of a kind that is never expected."""
        if self.resting:
            self.wake()
        kind = event.kind._value_
        key: Key = (kind, id(event.at))
        if self._call and self._call[0] == kind:
            key, self._call = self._call, ()
        if len(self._told) <= MOST:
            self._told.append((key, event))

    def wake(self) -> None:
        """The update does not go on like the ones before: what was let pass is told after all."""
        self.resting = False
        passed = self.events[: self.at]
        self._told = list(zip(self.keys, passed, strict=False))
        self.at = 0
        self._teller.passed(passed)

    def stepped(self) -> None:
        """A step ends the update."""
        if self.resting:
            self._teller.log.repeat(self.events)
        else:
            self._know()
            self._told = []
        self.at = 0
        self.resting = bool(self.events) and self._teller.steps % IN_FULL != 0

    def forget(self) -> None:
        """New objects have come: what looks like the old ones may not be."""
        if self.resting:
            self.wake()
        self._often.clear()
        self.keys, self.events = [_NONE], []

    def _know(self) -> None:
        """An update was told in full."""
        if len(self._told) > MOST:
            return
        calls = tuple(key for key, _ in self._told)
        events = [event for _, event in self._told]
        if len(self._often) > MOST:
            self._often.clear()
        often = self._often[calls] = self._often.get(calls, 0) + 1
        if often < OFTEN or self._teller.log.updates < KEPT_UPDATES or not _plain(events):
            return
        self.keys, self.events = [*calls, _NONE], events


def _plain(events: list[Event]) -> bool:
    """Nothing in it depends on more than the calls: ranks that synchronise, steps that skip, closures do."""
    return not any(
        e.facts.get("wrapper") or e.facts.get("skipped") or e.facts.get("closure") for e in events
    )
