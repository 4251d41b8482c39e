"""The forward passes since the last backward: those that the next one may walk."""

from __future__ import annotations

from collections.abc import Iterable

from fallline.events import Backward, Event, Forward

__all__ = ["Window"]

MOST = 64


class Window:
    """`forwards` with a graph, and the backward before them."""

    def __init__(self) -> None:
        self.forwards: list[Forward] = []
        self.backward: Backward | None = None

    def add(self, event: Forward) -> None:
        self.forwards.append(event)
        del self.forwards[:-MOST]

    def close(self, event: Backward) -> None:
        """A backward has come."""
        self.forwards, self.backward = [], event

    def passed(self, events: Iterable[Event]) -> None:
        """These were let pass without a look, and have to be known after all."""
        for event in events:
            match event:
                case Backward():
                    self.close(event)
                case Forward(grad=True):
                    self.forwards.append(event)

    def drop(self, others: set[int]) -> None:
        """Forget these events, by id."""
        self.forwards = [e for e in self.forwards if id(e) not in others]
