"""What the ids in events stand for. A field that is None is not known."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from fallline.events.strength import Strength
from fallline.location import Location

__all__ = [
    "OBJECTS",
    "Loader",
    "Model",
    "Object",
    "Optimizer",
    "Sampler",
    "Scaler",
    "Scheduler",
    "describe",
    "scale_free",
]


@dataclass(slots=True, eq=False)
class Object:
    """Something that a training loop uses."""

    id: str
    at: Location | None = None
    _: KW_ONLY
    born: int = 0  # how many events there were before it was made
    strength: Strength = Strength.SEEN  # (reader) whether its making was seen
    type: str | None = None  # its class: "SGD", "ResNet", "StepLR"

    @property
    def assumed(self) -> bool:
        """Its making was not seen: its use or its name stands for it."""
        return self.strength is not Strength.SEEN


@dataclass(slots=True, eq=False)
class Optimizer(Object):
    """What steps parameters."""

    parameters: frozenset[str] | None = None  # the parameter sets it steps
    # (reader) it steps tensors that belong to no model: an attack, an inversion, a style transfer
    loose: bool | None = None
    shared: bool | None = (
        None  # (reader) its learning rate is divided by a count: `lr=1e-2 / batch_size`
    )


@dataclass(slots=True, eq=False)
class Model(Object):
    """What is called in a forward pass."""

    parameters: frozenset[str] | None = None  # (reader) the parameter sets it holds
    # (reader) those of the models that it holds as well: a trainer module around a network
    parts: frozenset[str] | None = None
    wrapper: str | None = None  # "ddp" | "fsdp1" | "fsdp2"
    batchnorm: bool | None = None
    one_device: bool | None = None  # (reader) the script lets itself see one GPU only
    has_mode: bool | None = None  # eval mode changes what it computes


@dataclass(slots=True, eq=False)
class Scaler(Object):
    """torch.amp.GradScaler, or one like it."""

    enabled: bool | None = None


@dataclass(slots=True, eq=False)
class Scheduler(Object):
    """What changes the learning rate."""

    # (reader) its length is counted in batches of a loader, so it may advance with every batch
    in_batches: bool | None = None
    # (reader) its length is the number of rounds of a loop around the one in which it advances
    in_epochs: bool | None = None
    jumps: bool | None = (
        None  # (reader) the rate falls by a factor at every step, as with StepLR(optimizer, 1)
    )


@dataclass(slots=True, eq=False)
class Loader(Object):
    """What gives batches."""

    sampler: str | None = None  # its id
    length: int | None = None  # (watcher) which batch is the last
    leftover: int | None = None  # samples in the last batch, where it is smaller than the others
    endless: bool | None = None  # (reader) it begins again by itself


@dataclass(slots=True, eq=False)
class Sampler(Object):
    """What decides which samples a loader gives, and in which order."""

    shuffle: bool | None = None


# measured for Adam (`fallline prove FL104 FL201 FL124`); the others divide by the same kind of running size
_SCALE_FREE = frozenset(
    ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adafactor", "SparseAdam", "Lion", "Lamb", "LAMB", "Muon")
)  # fmt: skip


def scale_free(optimizer: str) -> bool:
    """Whether a constant factor on the gradient barely changes the update of this class; not for one that is not known."""
    return optimizer in _SCALE_FREE


OBJECTS: dict[str, type[Object]] = {
    "optimizer": Optimizer,
    "model": Model,
    "scaler": Scaler,
    "scheduler": Scheduler,
    "loader": Loader,
    "sampler": Sampler,
}


def describe(kind: str, id: str, at: Location | None = None, **known: Any) -> Object:
    """The description of an object of this kind; what is not known is left out. A misspelt field raises."""
    return OBJECTS[kind](id, at, **known)
