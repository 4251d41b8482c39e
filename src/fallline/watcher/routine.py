"""An update that goes like the ones before it is not recorded again: the same calls, in the same order, from the same places.

Recording an event means walking the stack, reading facts off graphs and objects, and keeping it: some hundred microseconds an
update, for what the log then throws away because it knows it. So once an update has been recorded often enough, each call is
only compared with the one that came at this point before (what kind, on which object, from which instruction). The first
call that differs wakes us: what was let pass is recorded after all, and this one in full. Facts that no call shows, such as a
divisor, are looked at in one update of 251. Programs take turns, as the two halves of a GAN do: after each way to go, that one is
expected which has come most often behind it.
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

OFTEN = 48  # times that an update was recorded in full
IN_FULL = 251  # then every so many are; a prime, so that each of several in turn is
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
        self._ways: dict[tuple[Key, ...], _Way] = {}  # that updates go
        self._expected: _Way | None = None  # that this one seems to go
        self._last: _Way | None = None  # that the last one went

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
        way: _Way | None
        if self.resting:
            self._log.repeat(self.events)
            way = self._expected
        else:
            way = self._know()
            self._recorded = []
        last = self._last
        if last is not None and way is not None:
            if last.next is way:
                last.right += 1
            else:
                last.followed_by(way)
        self._last = way
        self._expected = expected = way.next if way is not None else None
        self.at = 0
        # the last one that is kept whatever it looks like shows what has become of all that was seen before
        in_full = steps % IN_FULL == 0 or steps == KEPT_UPDATES - 1
        self.resting = expected is not None and bool(expected.events) and not in_full
        if expected is not None and self.resting:
            self.keys, self.events = expected.keys, expected.events

    def forget(self) -> None:
        """New objects have come: what looks like the old ones may not be."""
        if self.resting:
            self.wake()
        self._ways.clear()
        self._last = self._expected = None
        self.keys, self.events = [_NONE], []

    def _know(self) -> _Way | None:
        """An update was recorded in full: the way it went."""
        if len(self._recorded) > MOST:
            return None
        calls = tuple(key for key, _ in self._recorded)
        events = [event for _, event in self._recorded]
        if len(self._ways) > MOST:
            self._ways.clear()
        way = self._ways.get(calls)
        if way is None:
            way = self._ways[calls] = _Way()
        way.often += 1
        if way.often >= OFTEN and all(map(_plain, events)):
            way.keys, way.events = [*calls, _NONE], events
        return way


class _Way:
    """That updates of this program go."""

    __slots__ = ("_counts", "events", "keys", "next", "often", "right")

    def __init__(self) -> None:
        self.often = 0
        self.keys: list[Key] = [_NONE]
        self.events: list[Event] = []  # empty while it is not well known
        self.next: _Way = self  # that the following update most likely goes
        self.right = 0  # how often it did
        self._counts: dict[int, int] = {}  # by id of another way: how often it came instead

    def followed_by(self, way: _Way) -> None:
        """Not by the one that was expected."""
        count = self._counts[id(way)] = self._counts.get(id(way), 0) + 1
        if count > self.right:
            self._counts[id(self.next)] = self.right
            self.next, self.right = way, count


def _plain(event: Event) -> bool:
    """It depends on no more than the call: a step that skips does not."""
    return not (isinstance(event, Step) and event.skipped)
