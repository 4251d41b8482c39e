"""One small class for each thing that a training loop does.

The reader and the watcher make the same events with the same fields; rules look at nothing else. **A field that is
None is not known**, and a rule that needs it stays silent. A misspelt field does not type-check.

Parameter sets are named by stable strings: the reader uses model ids ("model#1"), the watcher the same for whole
models. `Trace` says what an id stands for.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import inf
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeAlias

from fallline.location import Location

__all__ = [
    "Anomaly",
    "AutocastOff",
    "Backward",
    "Batch",
    "Checkpoint",
    "Clip",
    "Deed",
    "Epoch",
    "EpochEnd",
    "Event",
    "Forward",
    "GradRead",
    "GradWrite",
    "Keep",
    "Mode",
    "Opaque",
    "Replace",
    "SamplerEpoch",
    "ScalerUpdate",
    "SchedulerStep",
    "Step",
    "Sync",
    "Unscale",
    "ZeroGrad",
]


# What an opaque call could have done: run a backward, clear gradients, step, divide losses or gradients, tell the sampler
# its epoch.
Deed: TypeAlias = Literal["backward", "clear", "step", "divide", "epoch"]


# Many are made for every training step, and compared by identity: no __eq__, no __post_init__.
@dataclass(slots=True, eq=False, repr=False)
class Event:
    """One thing that happened, where, and to which objects (by stable id)."""

    kind: ClassVar[str]

    at: Location
    _: KW_ONLY
    optimizer: str | None = None
    scaler: str | None = None
    model: str | None = None
    scheduler: str | None = None
    loader: str | None = None
    parameters: frozenset[str] | None = None  # the parameter sets it touches
    parameter_set: int | None = None  # the same as a number, in the watcher until a trace is built
    callers: tuple[Location, ...] = ()  # the calls that led here, the outermost first
    order: int = 0

    def __repr__(self) -> str:
        known = "".join(f", {name}={value!r}" for name, value in self.known().items())
        return f"{type(self).__name__}({self.at}{known})"

    def seen_from(self, other: Event) -> Location:
        """This event as it looks from the innermost function that leads to both: itself, or the call that led to it.

        A helper that runs `loss.backward()` for everyone is not where something is missing.
        """
        frames, others = (*self.callers, self.at), (*other.callers, other.at)
        return next((a for a, b in zip(frames, others, strict=False) if a != b), self.at)

    def known(self) -> dict[str, Any]:
        """Every fact about it that is known, by name; not the ids of the objects, nor the place."""
        kind = type(self)
        facts = zip(_NAMES[kind], _VALUES[kind](self), strict=True)
        return {name: value for name, value in facts if value is not None}

    def same_facts(self, other: Event) -> bool:
        """Whether the same is known about another event of this kind."""
        values = _VALUES[type(self)]
        return bool(values(self) == values(other))


@dataclass(slots=True, eq=False, repr=False)
class ZeroGrad(Event):
    """Gradients are cleared."""

    kind = "zero_grad"
    keeps: bool | None = (
        None  # of gradients that a different model has lent: that model still has them
    )
    boundary: Location | None = None  # (reader) the test of the iteration that decides to clear


@dataclass(slots=True, eq=False, repr=False)
class Forward(Event):
    """A model is called."""

    kind = "forward"
    training: bool | None = None  # model.training at the call
    grad: bool | None = None  # autograd records (False under no_grad and inference_mode)
    autocast: str | None = None  # "float16" | "bfloat16" | "half" (one of them) | "off"
    no_sync: bool | None = None  # inside DDP.no_sync, or require_backward_grad_sync is False
    wrapper: str | None = None  # "ddp" | "fsdp1" | "fsdp2" when the model called is wrapped so
    bypass: bool | None = None  # the call went to `ddp_model.module`, past the DDP wrapper
    repeated: bool | None = None  # (reader; in eval mode) in a loop that does not train
    fed: bool | None = None  # (reader; in eval mode) in a loop over a loader
    frozen: bool | None = None  # (reader) autograd is on, and nothing in the model learns
    used: bool | None = None  # its result later reached a backward (False: known not to)
    followed: bool | None = None  # (watcher) its result carries a mark that a backward would find

    @property
    def may_train(self) -> bool:
        """Autograd records it, and its result may reach a backward."""
        return self.grad is not False and self.used is not False


# What is presumed of a call that returns a loss and cannot be seen into.
UNSEEN_LOSS = "returns the mean loss of its batch and leaves the division to this loop"


@dataclass(slots=True, eq=False, repr=False)
class Backward(Event):
    """Gradients of a loss are computed."""

    kind = "backward"
    scaled: bool | None = None  # the loss was multiplied by an enabled GradScaler
    divided: bool | None = None  # the loss was divided by a count, or weighted so (loss / k)
    divisor: float | None = None  # by how much, in all; without what the framework divides by
    divided_by: str | None = None  # (reader) the text of the divisor: "args.accumulation_steps"
    # "accelerate" | "lightning" | "deepspeed" | "transformers" | "fabric" | "fallline": divides by the accumulation
    # count itself; "perhaps": a framework may
    normalised: str | None = None
    window: int | None = None  # that count
    driver: str | None = (
        None  # "transformers": its Trainer calls it, and takes the loss for divided
    )
    reduction: str | None = None  # "mean" | "sum" | "none": how the loss reduces over the batch
    # (reader) what the reduction rests on where no code shows it: "`criterion` averages, as losses do by default"
    presumed: str | None = None
    ragged: bool | None = None  # that mean is over a mask, an ignore_index or true lengths
    in_batch: bool | None = None  # the loss compares the samples of a batch (contrastive)
    autocast: str | None = None  # as in Forward, at the backward call itself
    no_sync: bool | None = None  # the backward itself ran inside no_sync
    sync: bool | None = None  # this backward all-reduced (decided by the state at its forward)
    wrapper: str | None = None  # "ddp" | "fsdp1" | "fsdp2" of the model it goes through
    retain_graph: bool | None = None
    create_graph: bool | None = None
    second: bool | None = None  # the same graph is walked again later (False: known not to be)
    half_parameters: bool | None = None  # the model's own parameters are float16
    site: str | None = None  # identity of the call site of the loss; same site = same loss

    @property
    def loss(self) -> object:
        """Equal for two backward passes exactly when they are of the same loss, called from the same places."""
        return (self.site or (self.at.path, self.at.line), tuple(map(str, self.callers)))


@dataclass(slots=True, eq=False, repr=False)
class GradWrite(Event):
    """`.grad` is changed by hand."""

    kind = "grad_write"
    op: Literal["div", "mul", "noise", "assign", "add", "other"] | None = None

    @property
    def rescales(self) -> bool:
        """It may change the size of the gradient on purpose."""
        return self.op not in ("noise", "add")


@dataclass(slots=True, eq=False, repr=False)
class GradRead(Event):
    """`.grad` is read: logged, or used by hand.

    "input": of a tensor that is not a parameter (attacks, saliency; live: a backward reached such a leaf).
    "use": it went into other values (hand-written updates, hooks, copies; live: a parameter changed outside any
    optimizer).
    """

    kind = "grad_read"
    what: Literal["norm", "value", "input", "use"] | None = None


@dataclass(slots=True, eq=False, repr=False)
class Unscale(Event):
    """`scaler.unscale_(optimizer)`."""

    kind = "unscale"


@dataclass(slots=True, eq=False, repr=False)
class Clip(Event):
    """Gradients are clipped."""

    kind = "clip"
    how: Literal["norm", "value"] | None = None
    threshold: float | None = None  # inf: the norm is only measured
    # on the last of several clips made module by module: parameters that the optimizer steps and no clip reached
    left_out: tuple[str, ...] | None = None
    twice: tuple[str, ...] | None = None  # likewise: parameters that several of them reached
    closure: bool | None = None  # inside the closure given to step
    empty: bool | None = None  # (watcher) no tensor at all was given: an iterator that was used up
    local_shards: bool | None = None  # torch's function on FSDP1 shards
    # (reader) apex: "inside" its scale_loss, or of half-precision parameters whose float32 copies are stepped
    scaled: Literal["inside", "copied", "perhaps"] | None = None

    @property
    def measures_only(self) -> bool:
        """`clip_grad_norm_(parameters, inf)` is how people read the norm; it changes nothing."""
        return self.threshold == inf


@dataclass(slots=True, eq=False, repr=False)
class Step(Event):
    """An optimizer steps. `parameters` are those it holds."""

    kind = "step"
    via: Literal["direct", "scaler", "framework"] | None = None
    skipped: bool | None = None  # (watcher) the scaler or the guard skipped it
    closure: bool | None = None  # step(closure)
    boundary: Location | None = None  # the test that decides to step, under accumulation
    other_way: bool | None = None  # (reader) that test has an alternative that is not known
    # (reader) the count in that test, where it is 1 by default or nothing shows that it is more
    optional: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ScalerUpdate(Event):
    """`scaler.update()`."""

    kind = "scaler_update"


@dataclass(slots=True, eq=False, repr=False)
class SchedulerStep(Event):
    """A learning-rate schedule advances."""

    kind = "scheduler_step"
    explicit: bool | None = None  # scheduler.step(epoch) with an explicit epoch, or a metric
    per: Literal["batch", "epoch"] | None = None  # the loop it is in
    checked: bool | None = None  # guarded by a test whether the scaler skipped (False: known not)


@dataclass(slots=True, eq=False, repr=False)
class Batch(Event):
    """A loader gave a micro-batch."""

    kind = "batch"
    last: bool | None = None  # (watcher) of an epoch, so that its update is recorded too
    endless: bool | None = None  # the loader begins again by itself
    exact: bool | None = None  # the length is known to divide by the window


@dataclass(slots=True, eq=False, repr=False)
class Epoch(Event):
    """A pass over a loader begins."""

    kind = "epoch"


@dataclass(slots=True, eq=False, repr=False)
class EpochEnd(Event):
    """The loader is exhausted."""

    kind = "epoch_end"


@dataclass(slots=True, eq=False, repr=False)
class SamplerEpoch(Event):
    """`sampler.set_epoch` was called."""

    kind = "sampler_epoch"
    sampler: str | None = None  # id of the sampler


@dataclass(slots=True, eq=False, repr=False)
class Mode(Event):
    """`model.train()` or `model.eval()`."""

    kind = "mode"
    mode: Literal["train", "eval"] | None = None
    chosen: bool | None = None  # (reader) the other branch of the test around sets the other mode


@dataclass(slots=True, eq=False, repr=False)
class Keep(Event):
    """A tensor with its graph is stored past the iteration.

    "append": in a container that grows (append, extend, history[i] = loss). "add": in a sum (total += loss).
    "assign": in one place that is overwritten.
    """

    kind = "keep"
    how: Literal["append", "add", "assign"] | None = None
    born: int | None = None  # (reader) the iteration that made the container or the sum
    of: tuple[str, ...] | None = None  # (reader) ids of the models that computed it
    reaches_backward: bool | None = None  # a later backward walks that graph (False: known not to)


@dataclass(slots=True, eq=False, repr=False)
class Sync(Event):
    """The host waits for the device; one event each time."""

    kind = "sync"
    what: str | None = None  # "item" | "cpu" | "print" | ...
    per_parameter: bool | None = None  # in a loop over parameters, once for each
    device: str | None = None  # "cuda" | "cpu": of the tensor


@dataclass(slots=True, eq=False, repr=False)
class Checkpoint(Event):
    """Activation checkpointing of a block, at the checkpoint call."""

    kind = "checkpoint"
    batchnorm: bool | None = None  # the block holds BatchNorm in train mode


@dataclass(slots=True, eq=False, repr=False)
class Anomaly(Event):
    """detect_anomaly is on in the training loop."""

    kind = "anomaly"


@dataclass(slots=True, eq=False, repr=False)
class Replace(Event):
    """Parameters are replaced after the optimizer (or DDP) took hold of the old ones.

    `optimizer` is the one that holds them; None where add_param_group takes the new ones up.
    """

    kind = "replace"
    what: Literal["recreated", "head", "fsdp1", "moved"] | None = None


@dataclass(slots=True, eq=False, repr=False)
class AutocastOff(Event):
    """Autocast was turned off inside a region where it is on."""

    kind = "autocast_off"
    half: bool | None = None  # a float16 or bfloat16 tensor was computed with there


@dataclass(slots=True, eq=False, repr=False)
class Opaque(Event):
    """A call that was given the loss, the optimizer or the sampler and cannot be seen into.

    A rule of the form "X is missing" stays silent only if such a call could have done X (`Trace.hides`).
    """

    kind = "opaque"
    what: str | None = None
    could: frozenset[Deed] | None = None  # have done, by what it was given; None: anything


# The facts of each kind, its own fields and which parameters it touches: their names, and how to get them all at once.
_NAMES = {
    kind: (*kind.__dict__["__slots__"], "parameters", "parameter_set")
    for kind in list(vars().values())
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
_VALUES = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
