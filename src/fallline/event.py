"""One vocabulary for what a training loop does, read from source or seen in a live run.

An `Event` is one thing that happened: its kind, where, to which objects, and facts about it. The reader
and the watcher produce the same events with the same facts; rules look at nothing else. **A fact that is
not known is absent** (or None), and a rule that needs it stays silent.

Facts by kind (all optional):

    ZERO_GRAD       clears: "grad" | "none" | "assign"   how the gradients were cleared
                    parameters
    FORWARD         training: bool    model.training at the call
                    grad: bool        autograd was recording (False under no_grad / inference_mode)
                    autocast: str     "float16" | "bfloat16" | "off" (no autocast); absent: not known
                    no_sync: bool     inside DDP.no_sync (or require_backward_grad_sync = False)
                    wrapper: str      "ddp" | "fsdp1" | "fsdp2" when the model called is wrapped so
                    bypass: bool      the call went to `ddp_model.module`, past the DDP wrapper
                    repeated: bool    (reader; in eval mode) in a loop that does not train
                    used: bool        its result later reached a backward (False: known not to)
    BACKWARD        scaled: bool      the loss was multiplied by an enabled GradScaler
                    divided: bool     the loss was divided by a count, or weighted so (loss / k, loss * (1 / k))
                    divisor: float    by how much the whole of it, where that is a number; not what the framework divides by
                    divided_by: str   the text of the divisor ("args.accumulation_steps"), reader only
                    normalised: str   "accelerate" | "lightning" | "deepspeed" | "transformers" | "fabric":
                                      a framework divides by the accumulation count itself; "perhaps": it may
                    window: int       that count, where it is known
                    driver: str       "transformers": its Trainer calls it, and takes the loss for divided
                    reduction: str    "mean" | "sum" | "none"   how the loss reduces over the batch
                    ragged: bool      that mean is over a mask, an ignore_index or true lengths
                    in_batch: bool    the loss compares the samples of a batch with each other (contrastive)
                    autocast: str     as in FORWARD, at the backward call itself
                    no_sync: bool     the backward itself ran inside no_sync
                    sync: bool        this backward all-reduced (decided by the state at its forward)
                    wrapper: str      "ddp" | "fsdp1" | "fsdp2" of the model it goes through
                    retain_graph: bool, create_graph: bool
                    second: bool      the same graph is walked again later (False: known not to be)
                    half_parameters: bool   the model's own parameters are float16
                    site: str         identity of the call site of the loss; same site = same loss
                    terms: int        number of different losses in it, when several are summed
                    parameters        which parameter sets it reaches
    GRAD_WRITE      op: "div" | "mul" | "noise" | "assign" | "add" | "other"     .grad changed by hand
                    parameters
    GRAD_READ       what: "norm" | "value" | "input" | "use"      .grad read: logged, or used by hand.
                                      "input": of a tensor that is no parameter (attacks, saliency; live: a
                                      backward reached such a leaf); "use": it went into other values (hand-written
                                      updates, hooks, copies; live: a parameter changed outside any optimizer)
    UNSCALE         -
    CLIP            how: "norm" | "value"
                    threshold: float           None: not known; inf: only measured
                    parameters: frozenset[str] which parameter sets (see below)
                    per_module: bool           one of several clips made module by module
                    left_out: tuple[str, ...]  on the last of them before the step: parameters that the
                                               optimizer steps and no clip of this update reached
                    twice: tuple[str, ...]     same place: parameters that several of them reached
                    closure: bool              inside the closure given to step
                    local_shards: bool         torch's function on FSDP1 shards
                    norm: float                (watcher) the norm it returned
    STEP            via: "direct" | "scaler" | "framework"
                    skipped: bool              (watcher) the scaler or the guard skipped it
                    closure: bool              step(closure)
                    boundary: Location         the test that decides to step, under accumulation
                    parameters: frozenset[str] which parameter sets the optimizer holds
    SCALER_UPDATE   -
    SCHEDULER_STEP  explicit: bool             scheduler.step(epoch) with an explicit epoch, or a metric
                    per: "batch" | "epoch"     the loop it is in
                    checked: bool              guarded by a test whether the scaler skipped (False: known not)
    BATCH           index: int, last: bool, endless: bool, exact: bool   a loader gave a micro-batch;
                                               exact: the length is known to divide by the window
    EPOCH           index: int                 a pass over the loader begins
    EPOCH_END       -                          the loader is exhausted
    SAMPLER_EPOCH   sampler: str               sampler.set_epoch was called (id of the sampler)
    MODE            mode: "train" | "eval"
    KEEP            how: "append" | "add" | "assign"   a tensor with its graph is stored past the iteration:
                                               in a container that grows (append, extend, history[i] = loss),
                                               in a sum (total += loss), in one place that is overwritten
                    born: int                  (reader) the iteration that made the container or the sum
                    of: tuple[str, ...]        (reader) ids of the models that computed it
                    reaches_backward: bool     a later backward walks that graph (False: known not to)
    SYNC            what: "item" | "cpu" | "print" | ...   the host waits for the device; one event each time
                    per_parameter: bool        in a loop over parameters, once for each
                    device: "cuda" | "cpu"     of the tensor
    CHECKPOINT      batchnorm: bool            activation checkpointing of a block (that holds BatchNorm in train
                                               mode), at the checkpoint call
    ANOMALY         -                          detect_anomaly is on in the training loop
    REPLACE         what: "recreated" | "head" | "fsdp1" | "moved"     parameters replaced after the optimizer
                                               (or DDP) took hold of the old ones; `optimizer` is the one that
                                               holds them. None where add_param_group takes the new ones up
    AUTOCAST_OFF    half: bool                 autocast was turned off inside a region where it is on;
                                               half: a float16 or bfloat16 tensor was computed with there
    OPAQUE          what: str                  a call that was given the loss, the model or the optimizer and
                                               cannot be seen into: "X is missing" rules stay silent

Parameter sets are named by stable strings: the reader uses model ids ("model#1"), the watcher the same for
whole models. `Trace.objects` says what an id stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

__all__ = ["Event", "Kind", "Location", "Object", "Trace", "Update"]


class Kind(StrEnum):
    ZERO_GRAD = "zero_grad"
    FORWARD = "forward"
    BACKWARD = "backward"
    GRAD_WRITE = "grad_write"
    GRAD_READ = "grad_read"
    UNSCALE = "unscale"
    CLIP = "clip"
    STEP = "step"
    SCALER_UPDATE = "scaler_update"
    SCHEDULER_STEP = "scheduler_step"
    BATCH = "batch"
    EPOCH = "epoch"
    EPOCH_END = "epoch_end"
    SAMPLER_EPOCH = "sampler_epoch"
    MODE = "mode"
    KEEP = "keep"
    SYNC = "sync"
    CHECKPOINT = "checkpoint"
    ANOMALY = "anomaly"
    REPLACE = "replace"
    AUTOCAST_OFF = "autocast_off"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source. Lines and columns count from 1; the end is exclusive."""

    path: str
    line: int
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(slots=True)
class Event:
    """One thing that happened, to which objects (by stable id), and what is known about it."""

    kind: Kind
    at: Location
    optimizer: str | None = None
    scaler: str | None = None
    model: str | None = None
    scheduler: str | None = None
    loader: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    callers: tuple[Location, ...] = ()  # the calls that led here, the outermost first
    order: int = 0

    def fact(self, name: str) -> Any:
        """The fact, or None where it is not known."""
        return self.facts.get(name)


@dataclass(slots=True)
class Object:
    """What an id in an event stands for.

    kind: "optimizer" | "model" | "scaler" | "scheduler" | "loader" | "sampler"
    facts, where known:
        optimizer: type ("SGD", "Adam", ...), parameters: frozenset of parameter-set names, lr
        model: type, wrapper ("ddp" | "fsdp1" | "fsdp2"), batchnorm: bool, recurrent: bool, transformer: bool,
               half: bool, dropout: bool, has_mode: bool (reader; eval mode changes what it computes)
        scaler: enabled: bool
        scheduler: type
        loader: endless: bool, sampler: id, length: int, shuffle: bool, workers: int
        sampler: type, shuffle: bool
        any: assumed: bool   (reader) its making was not seen; a parameter or a name stands for it
    """

    id: str
    kind: str
    at: Location | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    born: int = 0  # how many events there were before it was made

    def fact(self, name: str) -> Any:
        """The fact, or None where it is not known."""
        return self.facts.get(name)


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
        owner = self.object(optimizer)
        if owner is not None and event.order < owner.born:
            return False
        held = owner.fact("parameters") if owner is not None else None
        touched = event.fact("parameters")
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
