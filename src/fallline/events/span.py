"""A stretch of events, and how to ask it: `of`, `until`, `where`, `first`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Generic, TypeVar

from fallline.events.kinds import Event

__all__ = ["Span"]

E = TypeVar("E", bound=Event)
K = TypeVar("K", bound=Event)


class Span(Generic[E]):
    """Some events of a trace, in the order in which they are asked for. Nothing is copied; it can be walked again.

    `trace.after(clip).until(Step).of(Backward).first` is the next backward pass before the step.
    """

    __slots__ = ("_walk",)

    def __init__(self, walk: Callable[[], Iterator[E]]) -> None:
        self._walk = walk

    def __iter__(self) -> Iterator[E]:
        return self._walk()

    def __bool__(self) -> bool:
        return self.first is not None

    def of(self, *kinds: type[K]) -> Span[K]:
        """Those of these kinds."""
        return Span(lambda: (e for e in self._walk() if isinstance(e, kinds)))

    def until(self, *kinds: type[Event]) -> Span[E]:
        """Those before the first event of these kinds."""
        return Span(lambda: takewhile(lambda e: not isinstance(e, kinds), self._walk()))

    def where(self, test: Callable[[E], object]) -> Span[E]:
        """Those that pass a test."""
        return Span(lambda: filter(test, self._walk()))

    @property
    def first(self) -> E | None:
        return next(self._walk(), None)

    @property
    def last(self) -> E | None:
        found = None
        for found in self._walk():  # noqa: B007
            pass
        return found

    def first_of_each(self) -> list[E]:
        """The first event of each place that events come from; the calls that led there count."""
        found: dict[object, E] = {}
        for event in self._walk():
            found.setdefault((str(event.at), tuple(map(str, event.callers))), event)
        return list(found.values())
