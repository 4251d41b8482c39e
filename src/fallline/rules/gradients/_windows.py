"""Which gradients are alive at a step: what the rules about accumulation and clipping share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from fallline.events import Event, Kind, Trace, Update

__all__ = [
    "HABIT",
    "Window",
    "Wipe",
    "acting",
    "clears",
    "earlier",
    "first_of_each",
    "habits",
    "held",
    "is_habit",
    "later",
    "measures_only",
    "misdirected",
    "optimizer_type",
    "owners",
    "same_loss",
    "standing",
    "steps_by_framework",
    "windows",
]

# A finding about "every window" needs at least this share of an optimizer's updates to show it: a skipped batch, a
# warm-up iteration or the remainder of an epoch is no habit.
HABIT = 0.5
# What began later is a habit once it has gone on for so many updates.
CHANGED = 10


@dataclass(slots=True)
class Wipe:
    """Gradients cleared before any step could use them."""

    clear: Event
    lost: list[Event]


@dataclass(slots=True)
class Window:
    """What one step consumes.

    `alive` are the backward passes whose gradients the step sees, `micro` those of them that are the micro-batches
    of an accumulation (one loss, several times), `wiped` what was cleared on the way.
    """

    update: Update
    alive: list[Event]
    micro: list[Event]
    wiped: list[Wipe] = field(default_factory=list)

    def inside(self, *kinds: Kind) -> list[Event]:
        """Events of this update between the first and the last micro-batch's backward."""
        if not self.micro:
            return []
        first, last = self.micro[0].order, self.micro[-1].order
        return [e for e in self.update.all(*kinds) if first < e.order < last]


def held(trace: Trace, optimizer: str | None) -> frozenset[str] | None:
    """The parameter sets an optimizer steps; None where they are not known."""
    known = trace.object(optimizer)
    return (known.fact("parameters") or None) if known is not None else None


def optimizer_type(trace: Trace, optimizer: str | None) -> str:
    """`SGD`, `AdamW`, ...; empty where it is not known."""
    known = trace.object(optimizer)
    return (known.fact("type") or "") if known is not None else ""


def same_loss(event: Event) -> object:
    """Equal for two backward passes exactly when they are of the same loss, called from the same places."""
    return (event.fact("site") or (event.at.path, event.at.line), tuple(map(str, event.callers)))


def clears(trace: Trace, event: Event, optimizer: str | None) -> bool:
    """Whether this event may clear gradients of what this optimizer steps."""
    if event.kind is Kind.GRAD_WRITE and event.fact("op") == "assign":
        return trace.concerns(event, optimizer)
    if event.kind is not Kind.ZERO_GRAD:
        return False
    if event.optimizer is None or optimizer is None or event.optimizer == optimizer:
        return trace.concerns(event, optimizer)
    mine, theirs = held(trace, optimizer), held(trace, event.optimizer)
    return mine is not None and theirs is not None and not mine.isdisjoint(theirs)


def earlier(trace: Trace, event: Event) -> Iterator[Event]:
    """What came before an event, the nearest first."""
    return (trace.events[i] for i in range(event.order - 1, -1, -1))


def later(trace: Trace, event: Event) -> Iterator[Event]:
    """What came after an event, in order."""
    return (trace.events[i] for i in range(event.order + 1, len(trace.events)))


def measures_only(clip: Event) -> bool:
    """`clip_grad_norm_(parameters, inf)` is how people read the norm; it changes nothing."""
    threshold = clip.fact("threshold")
    return threshold is not None and threshold == float("inf")


def steps_by_framework(trace: Trace, optimizer: str | None) -> bool:
    """A framework owns this optimizer's protocol: it clears, divides and skips by itself."""
    return optimizer in _owned_by_framework(trace)


@lru_cache(maxsize=2)
def _owned_by_framework(trace: Trace) -> frozenset[str | None]:
    return frozenset(e.optimizer for e in trace.all(Kind.STEP) if e.fact("via") == "framework")


def acting(trace: Trace, event: Event) -> list[str | None]:
    """The optimizers in use when this happens: an optimizer that is done, or not yet begun, has no part in it."""
    return [o for o, (start, end) in _phases(trace).items() if start <= event.order < end]


@lru_cache(maxsize=2)
def _phases(trace: Trace) -> dict[str | None, tuple[int, float]]:
    """From where to where each optimizer is in use.

    Those whose steps alternate share a phase, and so does one with a single step: one round of a GAN is no sequence.
    """
    spans: dict[str | None, tuple[int, int]] = {}
    for step in trace.all(Kind.STEP):
        first, _ = spans.get(step.optimizer, (step.order, 0))
        spans[step.optimizer] = (first, step.order)
    begins = (Kind.EPOCH, Kind.BATCH, Kind.FORWARD, Kind.BACKWARD)
    starts: dict[str | None, int] = {}
    for optimizer, (first, final) in spans.items():
        over = [end for begin, end in spans.values() if begin < end < first < final]
        done = max(over, default=None)
        starts[optimizer] = 0 if done is None else _next(trace, done, begins)
    return {
        o: (starts[o], min((s for s in starts.values() if s > last), default=float("inf")))
        for o, (_, last) in spans.items()
    }


def _next(trace: Trace, order: int, kinds: tuple[Kind, ...]) -> int:
    return next(e.order for e in trace.events[order + 1 :] if e.kind in (*kinds, Kind.STEP))


def owners(trace: Trace, clip: Event) -> list[str | None]:
    """The optimizers whose gradients a clip changes; empty where that is not certain."""
    candidates = acting(trace, clip)
    if len(candidates) == 1:
        return candidates
    if clip.optimizer is not None:
        return [clip.optimizer]
    touched = clip.fact("parameters")
    sets = {o: held(trace, o) for o in candidates}
    if not touched or not all(sets.values()):
        return []
    return [o for o, mine in sets.items() if mine and not mine.isdisjoint(touched)]


def misdirected(trace: Trace, clip: Event) -> Event | None:
    """The step this clip stands before although the clipped parameters are none of that optimizer's."""
    touched = clip.fact("parameters")
    if not touched:
        return None
    target = next((e for e in later(trace, clip) if e.kind in (Kind.STEP, Kind.BACKWARD)), None)
    if target is None or target.kind is not Kind.STEP:
        return None
    mine = held(trace, target.optimizer)
    if mine is None or not mine.isdisjoint(touched):
        return None
    for event in earlier(trace, clip):
        if event.kind is Kind.STEP or event.kind is Kind.OPAQUE:
            return None
        if event.kind is Kind.BACKWARD and trace.concerns(event, target.optimizer):
            return target
    return None


Standing = Literal["fresh", "after", "before", "unknown"]


def standing(trace: Trace, clip: Event, optimizer: str | None) -> tuple[Standing, Event | None]:
    """Where a clip stands: on fresh gradients, after the step that used them, or before any backward.

    With "after" comes the step. A new batch or forward pass since that step means that the clip belongs to the
    next update: it is too early, not too late.
    """
    cleared = moved_on = False
    for event in earlier(trace, clip):
        kind = event.kind
        if kind is Kind.OPAQUE:
            return "unknown", None
        if kind is Kind.STEP and event.optimizer == optimizer:
            return ("before", None) if moved_on else ("after", event)
        if kind is Kind.BATCH or (kind is Kind.FORWARD and event.fact("grad") is not False):
            moved_on = True
        elif clears(trace, event, optimizer):
            if kind is Kind.GRAD_WRITE:
                return "fresh", None
            cleared = True
        elif kind in (Kind.BACKWARD, Kind.GRAD_WRITE) and not cleared:
            if trace.concerns(event, optimizer):
                return "fresh", None
    return "before", None


def first_of_each(events: Iterable[Event]) -> list[Event]:
    """The first occurrence of each place that events come from; the call chain counts."""
    return list(
        {(str(e.at), tuple(map(str, e.callers))): e for e in reversed(list(events))}.values()
    )[::-1]


@lru_cache(maxsize=2)
def windows(trace: Trace) -> tuple[Window, ...]:
    """The windows of all optimizers of a trace, optimizer by optimizer."""
    return tuple(w for optimizer in trace.optimizers for w in _windows_of(trace, optimizer))


def habits(
    seen: Iterable[tuple[Window, Event]], among: Iterable[Window]
) -> list[tuple[Window, Event]]:
    """Of what was seen in windows, the first of each place that shows in so many of them that it is the program's habit."""
    first: dict[tuple[str | None, str], tuple[Window, Event]] = {}
    shown: dict[tuple[str | None, str], set[int]] = {}
    for window, event in seen:
        key = (window.update.optimizer, str(event.at))
        first.setdefault(key, (window, event))
        shown.setdefault(key, set()).add(id(window))
    among = list(among)
    return [
        found
        for key, found in first.items()
        if is_habit([id(w) in shown[key] for w in among if w.update.optimizer == key[0]])
    ]


def is_habit(shows: list[bool], share: float = HABIT) -> bool:
    """Whether this many of the updates show it: of all, or of all since the first that did, for a program may change its ways."""
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
    alive: list[Event] = []
    shared: list[Event] = []
    wiped: list[Wipe] = []
    fed: dict[int, _Fed] = {}
    loaders: frozenset[str | None] = frozenset()
    forwards = 0
    for event in trace.events:
        if event.order in updates:
            alive = alive or shared
            made.append(Window(updates[event.order], alive, _micro_batches(alive, fed), wiped))
            alive, shared, wiped, fed, loaders = [], [], [], {}, frozenset()
        elif event.kind is Kind.BATCH:
            loaders |= {event.loader}
        elif event.kind is Kind.FORWARD:
            forwards += 1
        elif event.kind is Kind.BACKWARD:
            fed[event.order] = _Fed(loaders, forwards)
            if trace.concerns(event, optimizer):
                alive.append(event)
        elif event.kind is Kind.STEP:
            # Gradients that another optimizer steps first are its own, and a leak here (GANs), unless this one has no
            # others: then one backward feeds both.
            taken = [b for b in alive if trace.concerns(b, event.optimizer)]
            if taken:
                shared, alive = taken, [b for b in alive if b not in taken]
        elif clears(trace, event, optimizer):
            if alive:
                wiped.append(Wipe(event, alive))
            alive, shared = [], []
    return made


def _micro_batches(alive: list[Event], fed: dict[int, _Fed]) -> list[Event]:
    """Of these backward passes, those of one loss over successive micro-batches; empty when there is one only."""
    if len(alive) < 2:
        return []
    loss, count = Counter(same_loss(b) for b in alive).most_common(1)[0]
    micro = [b for b in alive if same_loss(b) == loss]
    if count < 2 or any(b.fact("second") for b in micro):
        return []
    first, second = fed[micro[0].order], fed[micro[1].order]
    if first.forwards == second.forwards and first.forwards > 0:
        return []  # several losses of one forward pass, collected in a loop
    several = len(fed[micro[-1].order].loaders) > 1
    return [] if several else micro  # one loss on several tasks' data is a sum on purpose
