"""An update that goes like the ones before it is not recorded again: the same calls, in the same order, from the same places.

Recording an event means walking the stack, reading facts off graphs and objects, and keeping it: some hundred microseconds an
update, for what the log then throws away because it knows it. So once an update has been recorded often enough, each call is
only compared with the one that came at this point before (what kind, on which object, from which instruction). The first
call that differs wakes us: what was let pass is recorded after all, and this one in full. Facts that no call shows, such as a
divisor, are looked at in one update of 256.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import FrameType
from typing import Any, TypeVar

from fallline.events import Event, Step
from fallline.taps.tap import Call
from fallline.watcher.fuse import Fuse
from fallline.watcher.log import KEPT_UPDATES, EventLog
from fallline.watcher.window import Window

__all__ = ["Routine"]

OFTEN = 32  # times that an update was recorded in full
IN_FULL = 256  # then every so many are
MOST = 256  # ways that updates of one program go

C = TypeVar("C", bound=Call)
Key = tuple[Any, ...]
_NONE: Key = ()


class Routine:
    """Whether the update in progress is one that is well known."""

    def __init__(self, log: EventLog, window: Window) -> None:
        self._log = log
        self._window = window
        self.resting = False  # so far nothing in this update was new
        self.events: list[Event] = []  # of the update that is expected now
        self.keys: list[Key] = [_NONE]  # its calls, and what no call is like
        self.at = 0  # how many of them have come
        self._recorded: list[tuple[Key, Event]] = []  # of the update in progress, unless it rests
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

    def unless_expected(
        self, kind: str, thing: str, record: Callable[[C], None], fuse: Fuse
    ) -> Callable[[C], None]:
        """The handler of a tap whose calls are only compared while all goes as before. `thing`: the call's attribute that counts."""
        thing_of = attrgetter(thing)

        def differs(key: Key, call: C) -> None:
            self.differs(key)
            record(call)

        def compare(call: C) -> None:
            if fuse.off:
                return
            frame = call.frame
            key = (kind, id(thing_of(call)), id(frame.f_code), frame.f_lasti, None)
            if self.resting and self.keys[self.at] == key:
                self.at += 1
            else:
                fuse.safely(differs, key, call)

        return compare

    def differs(self, key: Key) -> None:
        """This call has to be recorded."""
        if self.resting:
            self.wake()
        self._call = key

    def record(self, event: Event) -> None:
        """This event is recorded. It may be of a kind that is never expected."""
        if self.resting:
            self.wake()
        kind = event.kind
        key: Key = (kind, id(event.at))
        if self._call and self._call[0] == kind:
            key, self._call = self._call, ()
        if len(self._recorded) <= MOST:
            self._recorded.append((key, event))

    def wake(self) -> None:
        """The update does not continue like the ones before: what was let pass is recorded after all."""
        self.resting = False
        passed = self.events[: self.at]
        self._recorded = list(zip(self.keys, passed, strict=False))
        self.at = 0
        for event in passed:
            self._log.add(event)
        self._window.passed(passed)

    def stepped(self, steps: int) -> None:
        """A step, which is one of so many, ends the update."""
        if self.resting:
            self._log.repeat(self.events)
        else:
            self._know()
            self._recorded = []
        self.at = 0
        self.resting = bool(self.events) and steps % IN_FULL != 0

    def forget(self) -> None:
        """New objects have come: what looks like the old ones may not be."""
        if self.resting:
            self.wake()
        self._often.clear()
        self.keys, self.events = [_NONE], []

    def _know(self) -> None:
        """An update was recorded in full."""
        if len(self._recorded) > MOST:
            return
        calls = tuple(key for key, _ in self._recorded)
        events = [event for _, event in self._recorded]
        if len(self._often) > MOST:
            self._often.clear()
        often = self._often[calls] = self._often.get(calls, 0) + 1
        if often < OFTEN or self._log.updates < KEPT_UPDATES or not all(map(_plain, events)):
            return
        self.keys, self.events = [*calls, _NONE], events


def _plain(event: Event) -> bool:
    """It depends on no more than the call: a step that skips does not."""
    return not (isinstance(event, Step) and event.skipped)
