"""One execution, read or live: its events in order, the objects they touch, and the updates they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, cast

from fallline.events.kinds import Backward, Deed, Event, Opaque, Step
from fallline.events.objects import Loader, Model, Object, Optimizer, Sampler, Scaler
from fallline.events.span import Span

__all__ = ["Trace", "Update"]

K = TypeVar("K", bound=Event)
O = TypeVar("O", bound=Object)  # noqa: E741


@dataclass(slots=True, eq=False)
class Update:
    """The events of one optimizer from the end of one step to the end of the next.

    `events` ends with the step. `trail` holds the events that follow it before the next backward.
    """

    optimizer: str | None
    index: int
    events: list[Event]
    step: Step
    trail: list[Event] = field(default_factory=list)

    def of(self, *kinds: type[K]) -> Span[K]:
        """The events of these kinds up to and with the step, in order."""
        return Span(lambda: iter(self.events)).of(*kinds)

    def before(self, event: Event) -> Span[Event]:
        """The events of this update before this one, the nearest first."""
        return Span(lambda: (e for e in reversed(self.events) if e.order < event.order))

    def after(self, event: Event) -> Span[Event]:
        """The events of this update after this one, in order, up to and with the step."""
        return Span(lambda: (e for e in self.events if e.order > event.order))

    @property
    def backwards(self) -> list[Backward]:
        return list(self.of(Backward))


class Trace:
    """One execution, on paper or real.

    `settings` are the switches of the program that this trace assumed, in words ("args.amp is true"); `edited` are constants of a
    script (`distributed = False`) that it took the other way.
    `complete` is False when the trace stopped early (bounds, a crash), so that "never" cannot be concluded.
    `live` tells a real run from a reading.
    """

    def __init__(
        self,
        events: Iterable[Event],
        objects: Iterable[Object] = (),
        *,
        settings: Iterable[str] = (),
        edited: Iterable[str] = (),
        complete: bool = True,
        live: bool = False,
    ) -> None:
        self.events = list(events)
        for order, event in enumerate(self.events):
            event.order = order
        self.objects = {o.id: o for o in objects}
        self.settings = tuple(settings)
        self.edited = tuple(edited)
        self.complete = complete
        self.live = live

    # -- events ------------------------------------------------------------------------------------------------

    @cached_property
    def _by_kind(self) -> dict[type[Event], list[Event]]:
        found: dict[type[Event], list[Event]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return found

    def of(self, *kinds: type[K]) -> Span[K]:
        """The events of these kinds, in order."""
        if len(kinds) == 1:
            found = cast(list[K], self._by_kind.get(kinds[0], []))
            return Span(lambda: iter(found))
        return Span(lambda: iter(self.events)).of(*kinds)

    def after(self, event: Event) -> Span[Event]:
        """The events after this one, in order."""
        return self._span(event.order + 1, len(self.events))

    def before(self, event: Event) -> Span[Event]:
        """The events before this one, the nearest first."""
        return self._span(event.order - 1, -1, -1)

    def between(self, first: Event, last: Event) -> Span[Event]:
        """The events after the first and before the last, in order."""
        return self._span(first.order + 1, last.order)

    def _span(self, start: int, stop: int, step: int = 1) -> Span[Event]:
        return Span(lambda: map(self.events.__getitem__, range(start, stop, step)))

    def hides(self, *deeds: Deed) -> bool:
        """Whether something that could not be seen into could have done one of these: conclude nothing from their absence."""
        return any(e.could is None or not e.could.isdisjoint(deeds) for e in self.of(Opaque))

    # -- objects -----------------------------------------------------------------------------------------------

    def object(self, kind: type[O], id: str | None) -> O | None:
        """The object of this kind that an id stands for, where it is known."""
        found = self.objects.get(id) if id is not None else None
        return found if isinstance(found, kind) else None

    def optimizer(self, id: str | None) -> Optimizer | None:
        return self.object(Optimizer, id)

    def model(self, id: str | None) -> Model | None:
        return self.object(Model, id)

    def scaler(self, id: str | None) -> Scaler | None:
        return self.object(Scaler, id)

    def loader(self, id: str | None) -> Loader | None:
        return self.object(Loader, id)

    def sampler(self, id: str | None) -> Sampler | None:
        return self.object(Sampler, id)

    def objects_of(self, kind: type[O]) -> list[O]:
        """Every object of a kind."""
        return [o for o in self.objects.values() if isinstance(o, kind)]

    def held_by(self, optimizer: str | None) -> frozenset[str] | None:
        """The parameter sets an optimizer steps; None where they are not known."""
        known = self.optimizer(optimizer)
        return (known.parameters or None) if known is not None else None

    def sets_of(self, model: str | None) -> frozenset[str]:
        """The parameter sets of a model and of the models that it holds: what an optimizer that steps it has. By itself it is one."""
        if model is None:
            return frozenset()
        known = self.model(model)
        held = (known.parameters or frozenset()) | (known.parts or frozenset()) if known else ()
        return frozenset({model, *held})

    def within(self, model: str) -> list[str]:
        """The models that a call of one of them reaches too: itself, those that share its parameters, and those that it holds."""
        mine = self.sets_of(model)
        others = (o.id for o in self.objects_of(Model) if o.parameters and o.parameters <= mine)
        return list(dict.fromkeys((model, *others)))

    def type_of(self, optimizer: str | None) -> str:
        """`SGD`, `AdamW`, ...; empty where it is not known."""
        known = self.optimizer(optimizer)
        return (known.type or "") if known is not None else ""

    # -- updates -----------------------------------------------------------------------------------------------

    @cached_property
    def optimizers(self) -> list[str | None]:
        """The ids that are stepped, in order of their first step."""
        return list(dict.fromkeys(e.optimizer for e in self.of(Step)))

    @cached_property
    def by_framework(self) -> frozenset[str | None]:
        """The optimizers that a framework steps: it clears, divides and skips by itself."""
        return frozenset(e.optimizer for e in self.of(Step) if e.via == "framework")

    @cached_property
    def updates(self) -> list[Update]:
        """The updates of all optimizers, in the order of their steps."""
        found = [u for optimizer in self.optimizers for u in self.updates_of(optimizer)]
        return sorted(found, key=lambda u: u.step.order)

    def updates_of(self, optimizer: str | None) -> list[Update]:
        """The updates of one optimizer, without what belongs to another one.

        The events that one step leaves over (`trail`) are also the head of the next update's `events`.
        """
        updates: list[Update] = []
        pending: list[Event] = []
        for event in self.events:
            if not self.concerns(event, optimizer):
                continue
            pending.append(event)
            if isinstance(event, Step) and event.optimizer == optimizer:
                updates.append(Update(optimizer, len(updates), pending, event))
                pending = []
        rest = [*(u.events for u in updates[1:]), pending]
        for update, following in zip(updates, rest, strict=False):
            update.trail = list(_until_backward(following))
        return updates

    def concerns(self, event: Event, optimizer: str | None) -> bool:
        """Whether this event touches what this optimizer steps; unknown counts as yes."""
        if event.optimizer is not None and optimizer is not None:
            return event.optimizer == optimizer
        owner = self.optimizer(optimizer)
        if owner is None:
            return True
        if event.order < owner.born or event.order >= self._gone.get(owner.id, len(self.events)):
            return False
        held, touched = owner.parameters, event.parameters
        if not held or not touched or isinstance(event, Step):
            return True
        return not held.isdisjoint(touched)

    @cached_property
    def _gone(self) -> dict[str, int]:
        """Optimizers that are made anew at the same place, for the next fold or task, and never touched again: from when on."""
        last = {e.optimizer: e.order for e in self.events if e.optimizer is not None}
        made = [o for o in self.objects.values() if isinstance(o, Optimizer) and o.at is not None]
        gone: dict[str, int] = {}
        for one in made:
            later = (o.born for o in made if o.at == one.at and o.born > one.born)
            born = min(later, default=None)
            if born is not None and one.born < last.get(one.id, born) < born:
                gone[one.id] = born
        return gone


def _until_backward(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, Backward):
            return
        yield event
