"""Events, in order: from the parts that make them to the log, and to the routine that learns them."""

from __future__ import annotations

from threading import get_ident
from typing import Any, TypeVar

from fallline.events import Event
from fallline.location import Location
from fallline.taps.frames import Place
from fallline.watcher.log import EventLog
from fallline.watcher.objects import Objects
from fallline.watcher.routine import Routine
from fallline.watcher.window import Window

__all__ = ["NOWHERE", "Emitter", "spot"]

NOWHERE = Location("<unknown>", 1)
MOST_EARLY = 1_000

E = TypeVar("E", bound=Event)


def spot(where: Place | None) -> tuple[Location, tuple[Location, ...]]:
    """The place of an event, and the calls that led there, the outermost first."""
    return (NOWHERE, ()) if where is None else (where.at, where.callers[::-1])


class Emitter:
    """Records events. What is done to gradients by hand, line by line, is one event for many parameters."""

    def __init__(self, log: EventLog, routine: Routine, window: Window, objects: Objects) -> None:
        self._log = log
        self._routine = routine
        self._window = window
        self._objects = objects
        # by kind and place: an event that more parameters may be added to
        self._open: dict[tuple[type[Event], int], tuple[Event, list[Any]]] = {}
        self.muted = False  # what happens now is not recorded
        # by thread, before it is known which one trains; None from then on
        self._early: list[tuple[int, Event]] | None = []

    def emit(self, event: E) -> E:
        """Record one event; what was done to gradients by hand before it is complete."""
        if self._open:
            self._settle()
        self.record(event)
        return event

    def extends(self, kind: type[Event], at: Location, tensor: Any) -> bool:
        """Whether this line has just done the same to another parameter; then this one is added to that event."""
        opened = self._open.get((kind, id(at)))
        if opened is None:
            return False
        opened[1].append(tensor)
        return True

    def open(self, event: Event, tensor: Any) -> None:
        """Record an event that more parameters may be added to."""
        self.record(event)
        self._open[type(event), id(event.at)] = (event, [tensor])

    def _settle(self) -> None:
        """Something else happens: what was done line by line to many parameters is complete."""
        for event, tensors in self._open.values():
            event.parameter_set = self._objects.parameters(tensors)
        self._open.clear()

    def record(self, event: Event) -> None:
        if self.muted:
            return
        if self._early is not None:
            self._early.append((get_ident(), event))
            del self._early[:-MOST_EARLY]
        self._routine.record(event)
        self._log.add(event)

    def trainer_known(self) -> None:
        """This thread trains: what others have done until now is not its doing."""
        if self._early is None:
            return
        mine = get_ident()
        others = {id(event) for ident, event in self._early if ident != mine}
        self._early = None
        if others:
            self._log.drop(others)
            self._window.drop(others)
