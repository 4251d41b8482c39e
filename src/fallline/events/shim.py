"""For the transition only: events and objects as a kind with a dictionary of facts. Nothing new may use this."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from fallline.events import kinds
from fallline.events.kinds import Event, Kind
from fallline.location import Location

__all__ = ["Facts", "make"]

CLASSES: dict[Kind, type[Event]] = {
    thing.kind: thing
    for thing in vars(kinds).values()
    if isinstance(thing, type) and issubclass(thing, Event) and thing is not Event
}


def make(kind: Kind, at: Location, **known: Any) -> Event:
    """The event of this kind; a misspelt fact raises TypeError."""
    if known.get("parameters").__class__ is int:
        known["parameter_set"] = known.pop("parameters")
    return CLASSES[kind](at, **known)


class Facts(MutableMapping[str, Any]):
    """The known facts of an event, as the dictionary that they used to be."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event

    def __getitem__(self, name: str) -> Any:
        value = getattr(self.event, name, None)
        if value is None and name == "parameters":
            value = self.event.parameter_set
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "parameters":
            number = value.__class__ is int
            self.event.parameter_set = value if number else None
            self.event.parameters = None if number else value
        else:
            setattr(self.event, name, value)

    def __delitem__(self, name: str) -> None:
        self[name] = None

    def __iter__(self) -> Iterator[str]:
        for name in self.event.known():
            yield "parameters" if name == "parameter_set" else name

    def __len__(self) -> int:
        return len(self.event.known())
