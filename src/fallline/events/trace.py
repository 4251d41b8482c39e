"""One execution, read or live: its events in order, the objects they touch, and the updates they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fallline.events.kinds import Event, Kind
from fallline.events.objects import Loader, Model, Object, Optimizer, Sampler, Scaler, Scheduler

__all__ = ["Trace", "Update"]


@dataclass(slots=True)
class Update:
    """The events of one optimizer from the end of one step to the end of the next.

    `events` ends with the STEP. `trail` holds what follows it before the next backward.
    """

    optimizer: str | None
    index: int
    events: list[Event]
    step: Event
    trail: list[Event] = field(default_factory=list)

    def all(self, *kinds: Kind) -> list[Event]:
        """The events of these kinds up to and with the step, in order."""
        return [e for e in self.events if e.kind in kinds]

    @property
    def backwards(self) -> list[Event]:
        return self.all(Kind.BACKWARD)

    @property
    def accumulates(self) -> bool:
        """Several backward passes of one and the same loss feed this step."""
        sites: dict[object, int] = {}
        for event in self.backwards:
            site = event.fact("site") or event.at
            sites[site] = sites.get(site, 0) + 1
        return any(count > 1 for count in sites.values())

    def before(self, event: Event, *kinds: Kind) -> list[Event]:
        """Events of these kinds in this update that come before `event`."""
        return [e for e in self.events if e.order < event.order and e.kind in kinds]

    def after(self, event: Event, *kinds: Kind) -> list[Event]:
        """Events of these kinds in this update, up to the step, that come after `event`."""
        return [e for e in self.events if e.order > event.order and e.kind in kinds]


class Trace:
    """One execution, on paper or real: events in order, the objects they touch, and the updates they make.

    `settings` are the switches of the program that this trace assumed, in words ("args.amp is true").
    `complete` is False when the trace stopped early (bounds, a crash), so that "never" cannot be concluded.
    `live` tells a real run from a reading.
    """

    def __init__(
        self,
        events: Iterable[Event],
        objects: Iterable[Object] = (),
        *,
        settings: Iterable[str] = (),
        complete: bool = True,
        live: bool = False,
    ) -> None:
        self.events = list(events)
        for order, event in enumerate(self.events):
            event.order = order
        self.objects = {o.id: o for o in objects}
        self.settings = tuple(settings)
        self.complete = complete
        self.live = live

    def all(self, *kinds: Kind) -> list[Event]:
        """The events of these kinds, in order."""
        return [e for e in self.events if e.kind in kinds]

    def object(self, id: str | None) -> Object | None:
        return self.objects.get(id) if id is not None else None

    def optimizer(self, id: str | None) -> Optimizer | None:
        found = self.object(id)
        return found if isinstance(found, Optimizer) else None

    def model(self, id: str | None) -> Model | None:
        found = self.object(id)
        return found if isinstance(found, Model) else None

    def scaler(self, id: str | None) -> Scaler | None:
        found = self.object(id)
        return found if isinstance(found, Scaler) else None

    def scheduler(self, id: str | None) -> Scheduler | None:
        found = self.object(id)
        return found if isinstance(found, Scheduler) else None

    def loader(self, id: str | None) -> Loader | None:
        found = self.object(id)
        return found if isinstance(found, Loader) else None

    def sampler(self, id: str | None) -> Sampler | None:
        found = self.object(id)
        return found if isinstance(found, Sampler) else None

    @cached_property
    def optimizers(self) -> list[str | None]:
        """The ids that are stepped, in order of their first step."""
        return list(dict.fromkeys(e.optimizer for e in self.events if e.kind is Kind.STEP))

    @cached_property
    def updates(self) -> list[Update]:
        """The updates of all optimizers, in the order of their steps."""
        found = [u for optimizer in self.optimizers for u in self.updates_of(optimizer)]
        return sorted(found, key=lambda u: u.step.order)

    def updates_of(self, optimizer: str | None) -> list[Update]:
        """The updates of one optimizer. What belongs to another optimizer is left out.

        What one step leaves over (`trail`) is also the head of the next update's `events`.
        """
        mine = [e for e in self.events if self.concerns(e, optimizer)]
        updates: list[Update] = []
        pending: list[Event] = []
        for event in mine:
            pending.append(event)
            if event.kind is Kind.STEP and event.optimizer == optimizer:
                updates.append(Update(optimizer, len(updates), pending, event))
                pending = []
        for update, following in zip(
            updates, [*(u.events for u in updates[1:]), pending], strict=False
        ):
            update.trail = list(_until_backward(following))
        return updates

    def concerns(self, event: Event, optimizer: str | None) -> bool:
        """Whether this event touches what this optimizer steps; unknown counts as yes."""
        if event.optimizer is not None and optimizer is not None:
            return event.optimizer == optimizer
        owner = self.optimizer(optimizer)
        if owner is not None and event.order < owner.born:
            return False
        held = owner.parameters if owner is not None else None
        touched = event.parameters
        if not held or not touched or event.kind is Kind.STEP:
            return True
        return not held.isdisjoint(touched)

    @cached_property
    def opaque(self) -> bool:
        """Something that matters could not be seen: conclude nothing from absence."""
        return any(e.kind is Kind.OPAQUE for e in self.events)


def _until_backward(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if event.kind is Kind.BACKWARD:
            return
        yield event
