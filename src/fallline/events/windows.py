"""Which gradients a step uses: the backward passes of its window, and what was cleared on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from fallline.events.kinds import Backward, Batch, Event, Forward, GradWrite, Step, ZeroGrad
from fallline.events.span import Span
from fallline.events.trace import Trace, Update

__all__ = ["Window", "Wipe", "clears", "habits", "is_habit", "windows"]

# A finding about "every window" needs at least this share of an optimizer's updates to show it: a skipped batch, a
# warm-up iteration or the remainder of an epoch is not a habit.
HABIT = 0.5
# What began later is a habit once it has lasted for so many updates.
CHANGED = 10


@dataclass(slots=True, eq=False)
class Wipe:
    """Gradients cleared before any step could use them."""

    clear: ZeroGrad | GradWrite
    lost: list[Backward]


@dataclass(slots=True, eq=False)
class Window:
    """What one step consumes.

    `alive` are the backward passes whose gradients the step sees, `micro` those of them that are the micro-batches
    of an accumulation (one loss, several times), `wiped` what was cleared on the way. `leaked` are those of another
    optimizer's update whose gradients are still here.
    """

    update: Update
    alive: list[Backward]
    micro: list[Backward]
    wiped: list[Wipe] = field(default_factory=list)
    leaked: list[Backward] = field(default_factory=list)

    @property
    def step(self) -> Step:
        return self.update.step

    @property
    def optimizer(self) -> str | None:
        return self.update.optimizer

    @property
    def inside(self) -> Span[Event]:
        """The events of this update between the first and the last micro-batch's backward, in order."""
        if not self.micro:
            return Span(lambda: iter(()))
        last = self.micro[-1].order
        return self.update.after(self.micro[0]).where(lambda e: e.order < last)


def clears(trace: Trace, event: Event, optimizer: str | None) -> bool:
    """Whether this event may clear gradients of what this optimizer steps."""
    match event:
        case ZeroGrad(keeps=True):
            return False
        case GradWrite(op="assign"):
            return trace.concerns(event, optimizer)
        case ZeroGrad(optimizer=None):
            return trace.concerns(event, optimizer)
        case ZeroGrad(optimizer=other):
            if optimizer is None or other == optimizer:
                return trace.concerns(event, optimizer)
            mine, theirs = trace.held_by(optimizer), trace.held_by(other)
            return mine is not None and theirs is not None and not mine.isdisjoint(theirs)
    return False


@lru_cache(maxsize=2)  # several rules ask for those of the same trace
def windows(trace: Trace) -> tuple[Window, ...]:
    """The windows of all optimizers of a trace, optimizer by optimizer."""
    return tuple(w for optimizer in trace.optimizers for w in _windows_of(trace, optimizer))


def habits(
    seen: Iterable[tuple[Window, Event]], among: Iterable[Window]
) -> list[tuple[Window, Event]]:
    """The first of each place that so many windows show that it is the program's habit."""
    first: dict[tuple[str | None, str], tuple[Window, Event]] = {}
    shown: dict[tuple[str | None, str], set[int]] = {}
    for window, event in seen:
        key = (window.optimizer, str(event.at))
        first.setdefault(key, (window, event))
        shown.setdefault(key, set()).add(id(window))
    among = list(among)
    return [
        found
        for key, found in first.items()
        if is_habit([id(w) in shown[key] for w in among if w.optimizer == key[0]])
    ]


def is_habit(shows: list[bool], share: float = HABIT) -> bool:
    """Whether this many of the updates show it: of all, or of all since the first that did, for a program may change."""
    if not any(shows):
        return False
    since = shows[shows.index(True) :]
    return sum(shows) >= share * len(shows) or (
        len(since) >= CHANGED and sum(since) >= share * len(since)
    )


@dataclass(frozen=True, slots=True)
class _Fed:
    """What a backward was fed with: the loaders its update has drawn from, and how many forward passes there were."""

    loaders: frozenset[str | None]
    forwards: int


def _windows_of(trace: Trace, optimizer: str | None) -> list[Window]:
    updates = {u.step.order: u for u in trace.updates_of(optimizer)}
    made: list[Window] = []
    alive: list[Backward] = []
    shared: list[Backward] = []
    wiped: list[Wipe] = []
    fed: dict[int, _Fed] = {}
    loaders: frozenset[str | None] = frozenset()
    forwards = 0
    for event in trace.events:
        match event:
            case Step() if event.order in updates:
                leaked = shared if alive else []
                alive = alive or shared
                micro = _micro_batches(alive, fed)
                made.append(Window(updates[event.order], alive, micro, wiped, leaked))
                alive, shared, wiped, fed, loaders = [], [], [], {}, frozenset()
            case Batch():
                loaders |= {event.loader}
            case Forward():
                forwards += 1
            case Backward():
                fed[event.order] = _Fed(loaders, forwards)
                if trace.concerns(event, optimizer):
                    alive.append(event)
            case Step():
                # Gradients that another optimizer steps first are its own, and a leak here (GANs), unless this one has
                # no others: then one backward feeds both.
                taken = [b for b in alive if trace.concerns(b, event.optimizer)]
                if taken:
                    shared, alive = taken, [b for b in alive if b not in taken]
            case ZeroGrad() | GradWrite() if clears(trace, event, optimizer):
                if alive:
                    wiped.append(Wipe(event, alive))
                alive, shared = [], []
    return made


def _micro_batches(alive: list[Backward], fed: dict[int, _Fed]) -> list[Backward]:
    """The backward passes of one loss over successive micro-batches; empty when there is only one."""
    if len(alive) < 2:
        return []
    loss, count = Counter(b.loss for b in alive).most_common(1)[0]
    micro = [b for b in alive if b.loss == loss]
    if count < 2 or any(b.second for b in micro):
        return []
    first, second = fed[micro[0].order], fed[micro[1].order]
    if first.forwards == second.forwards and first.forwards > 0:
        return []  # several losses of one forward pass, collected in a loop
    several = len(fed[micro[-1].order].loaders) > 1
    return [] if several else micro  # one loss on several tasks' data is a sum on purpose
