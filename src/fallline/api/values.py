"""What a name can stand for on paper: numbers, tensors, training objects, functions, and what is not known."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from fallline.location import Location
from fallline.syntax import Module

__all__ = [
    "NONE",
    "Bound",
    "Class",
    "Const",
    "Context",
    "External",
    "Function",
    "Mapping",
    "Param",
    "Params",
    "Partial",
    "Sequence",
    "Tensor",
    "Thing",
    "Unknown",
    "Value",
    "kind_by_name",
    "of_kind",
    "one_for_each",
    "parameters_within",
    "record",
    "replace",
    "truth_of",
]


class Value:
    """Base of all values on paper."""

    __slots__ = ()


@dataclass(slots=True)
class Const(Value):
    """A Python constant. `varying` when it depends on the iteration of a loop."""

    value: Any
    varying: bool = False
    batches: bool = False  # as many as a loader gives in this execution: not a literal that shrinks
    said: str = field(default="", compare=False)  # the test that it is the result of

    @property
    def number(self) -> float | None:
        """The value as a float, where it is a number that fits into one."""
        try:
            return float(self.value) if isinstance(self.value, int | float) else None
        except OverflowError:
            return None


NONE = Const(None)


def truth_of(value: Value | None) -> bool | None:
    """Whether a flag is on; None where it is not given, or not known."""
    return bool(value.value) if isinstance(value, Const) else None


_LONGEST_HINT = 500  # `node = node.next`, again and again


class Unknown(Value):
    """Something the reader cannot see, with the words that name it. It may turn out to be a training object."""

    __slots__ = ("became", "hint", "made_from", "outputs", "parts", "since", "varying")

    def __init__(self, hint: str = "", *, varying: bool = False) -> None:
        self.hint = hint
        self.became: Thing | None = None
        self.since: int | None = None  # how many events there were before it got a name
        self.made_from: list[
            Thing
        ] = []  # training objects that went into the call that returned it
        self.varying = varying
        self.outputs = False  # how many outputs one pass of a model has
        self.parts: dict[
            str, Unknown
        ] = {}  # attributes and items, the same each time they are asked for

    def part(self, name: str) -> Unknown:
        """An attribute or item of something unknown: unknown too, but always the same one."""
        found = self.parts.get(name)
        if found is None:
            known = self.hint and len(self.hint) < _LONGEST_HINT
            found = self.parts[name] = Unknown(f"{self.hint}.{name}" if known else name)
        return found

    def item(self, key: str) -> Unknown:
        """What is under a key: in a dict of optimizers, one of them (`optimizer["generator"]`)."""
        if not one_for_each(kind_by_name(self.hint), key):
            return self.part(key)
        return self.parts.setdefault(f"[{key}]", Unknown(f"{self.hint}_{key}"))

    def __repr__(self) -> str:
        return f"Unknown({self.hint!r})"


@dataclass(slots=True, eq=False)
class Thing(Value):
    """A training object, or an instance of a class of the project.

    kind: model, optimizer, scaler, scheduler, loader, sampler, criterion, accelerator, fabric, engine,
    dataset, iterator, object.
    """

    kind: str
    id: str
    at: Location | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    attrs: dict[str, Value] = field(default_factory=dict)
    cls: tuple[Module, ast.ClassDef] | None = None
    born: int = 0  # how many events there were before it was made

    @property
    def sets(self) -> frozenset[str]:
        """The parameter sets of a model or an optimizer."""
        found = self.facts.get("parameters")
        return found if isinstance(found, frozenset) else frozenset()

    @property
    def number(self) -> int:
        """How many objects of its kind were made before it, and itself."""
        return int(self.id.rpartition("#")[2].partition(".")[0])

    @property
    def enabled(self) -> bool:
        """Of a scaler: it was not turned off."""
        return self.facts.get("enabled") is not False


def of_kind(values: Iterable[Value | None], kind: str) -> list[Thing]:
    """The training objects of this kind among some values."""
    return [v for v in values if isinstance(v, Thing) and v.kind == kind]


class Divisor(NamedTuple):
    """What a loss was divided by: the number, and its text, where they are known."""

    number: float | None = None
    text: str = ""

    def merged(self, other: Divisor) -> Divisor:
        """Of a tensor computed from two."""
        return Divisor(self.number or other.number, self.text or other.text)


_NOT_KNOWN = Divisor()


@dataclass(slots=True, eq=False)
class Tensor(Value):
    """A tensor, with what matters about how it came to be."""

    graph: bool | None = None
    sets: frozenset[str] = frozenset()
    forwards: frozenset[int] = frozenset()  # ids of the FORWARD events it came from
    kept: frozenset[int] = frozenset()  # ids of the KEEP events it went through
    divided: bool | None = False
    divisor: Divisor = _NOT_KNOWN
    divided_at: Location | None = None
    reduction: str | None = None
    ragged: bool = False
    masked: bool = False  # multiplied by a mask
    scaler: Thing | None = None
    grad_of: frozenset[str] | None = None
    half: str | None = None  # "float16" | "bfloat16" under autocast, until .float()
    length: int | None = None
    leaf: bool = False
    depth: int = 0  # how many loops were around when it was computed
    host: bool = False  # it is on the host already: nothing waits for it
    numbered: bool = False  # 0, 1, 2, ...: as targets, each sample's own place in the batch
    in_batch: bool = False  # a loss that compares the samples of a batch with each other
    per_sample: bool = False  # summed over some dimensions only: one number for each sample or row
    presumed: str = ""  # what its reduction rests on, where no code shows it
    raw: bool = False  # as a model returned it
    stored: bool = False  # out of a container
    born: int | None = None  # the iteration that gave it a name
    # what it was computed from, by an operation that keeps the graph as it is
    made_of: Tensor | None = field(default=None, repr=False, compare=False)


_FIELDS = attrgetter(*Tensor.__dataclass_fields__)


def replace(tensor: Tensor, **changes: Any) -> Tensor:
    """A copy of a tensor with some of it changed; every operation makes one, so it has to be quick."""
    new = Tensor(*_FIELDS(tensor))
    new.born = None
    new.made_of = None if "graph" in changes else tensor
    for name, value in changes.items():
        setattr(new, name, value)
    return new


@dataclass(slots=True)
class Param(Value):
    """One parameter out of a set."""

    sets: frozenset[str]


@dataclass(slots=True)
class Params(Value):
    """Some or all parameters of some models. `sets` is empty when it is not known which."""

    sets: frozenset[str]
    named: bool = False
    masters: bool = False  # apex's float32 copies, which the optimizer steps


@dataclass(slots=True, eq=False)
class Sequence(Value):
    """A list, tuple or set whose items are known. `born` is the iteration that made it."""

    items: list[Value]
    born: int = 0
    open: bool = False  # more items than are listed may be in it


@dataclass(slots=True, eq=False)
class Mapping(Value):
    items: dict[Any, Value]
    born: int = 0
    open: bool = False  # the `**kwargs` of a caller who is not in view: it may hold any name

    def get(self, key: Any, default: Value | None = None) -> Value | None:
        """What is under a key; in an open one something unknown by that name, the same each time."""
        if self.open and isinstance(key, str):
            return self.items.setdefault(key, Unknown(key))
        return self.items.get(key, default)


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function of the project, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    scope: Any = None
    me: Thing | None = None
    entered: Any = None  # of a context manager that was called: the frame with what it was given


@dataclass(slots=True)
class Class(Value):
    node: ast.ClassDef
    module: Module


@dataclass(slots=True)
class External(Value):
    """A dotted name outside the project: `torch.optim.Adam`."""

    name: str


@dataclass(slots=True)
class Partial(Value):
    """functools.partial: something to call, with arguments already given."""

    target: Value
    args: list[Value]
    kwargs: dict[str, Value]


@dataclass(slots=True)
class Bound(Value):
    """A method of something that is not a class of the project: `optimizer.step`."""

    of: Value
    name: str
    hint: str = ""


@dataclass(slots=True)
class Context(Value):
    """A context manager: what it puts around statements, and what `as` names. Neither: it does nothing."""

    opens: Callable[[Any, ast.AST], AbstractContextManager[None]] | None = None
    gives: Value | None = None


_HABITS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "scheduler",
        re.compile(r"(?i)(^|_)(lr_?)?sched(uler|ulers|ule)?s?($|_|\d)|warmup_sched|lr_?scheduler"),
    ),
    ("scaler", re.compile(r"(?i)(^|_)(grad_?|loss_?|amp_?|fp16_?)?scaler($|_|\d)")),
    (
        "optimizer",
        re.compile(
            r"(?i)(^|_)optim(izer|iser)?s?($|_|\d|(?-i:[A-Z]))|^(opt|opt_?[a-z]|[a-z]_opt|[a-z]+_opt|optimizer[A-Z_]?\w*)$|optimi[sz]er"
        ),
    ),
    (
        "loader",
        re.compile(
            r"(?i)(loader|dataloader|data_?iter|train_iter|_dl$|^dl$|^data$|dataset|_gen$|batches)"
        ),
    ),
    ("accelerator", re.compile(r"(?i)^_?accelerator$")),
    ("fabric", re.compile(r"(?i)^_?fabric$")),
    (
        "criterion",
        re.compile(r"(?i)(criterion|loss_?f(u?n|unc|unction)?$|^loss_?(fct|obj)|_loss_fn$|^crit$)"),
    ),
    (
        "model",
        re.compile(
            r"(?i)(^|_)(model|net|network|generator|discriminator|critic|actor|policy|encoder|decoder|backbone|student|teacher|gan|vae|unet|classifier|transformer|llm|agent|netg|netd)($|_|s$|\d|(?-i:[A-Z]))"
            # G, D_A, g_ab, dnet; not `get`, `dim`, `dx`
            r"|^_?(?-i:[GD](_?[A-Za-z]{1,2}|_?[Nn]et|\d)?|[gd](_[A-Za-z]{1,2}|_?net|\d)?|gen|dis)$|^ddp$"
        ),
    ),
)


# `model_name`, `opt_class`, `loader_kwargs`: not the thing itself.
_ABOUT = re.compile(
    r"(?i)_(class|cls|type|factory|name|names|config|cfg|conf|args|kwargs|params|path|dir|file|ids?|dim|size|loss|losses|level)$"
)


_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "eval"})


def one_for_each(kind: str | None, key: str) -> bool:
    """Whether a dict of such objects has one for each model (`optimizer["generator"]`) or part of the data (`loaders["train"]`)."""
    if kind == "loader":
        return key in _SPLITS
    return kind in {"optimizer", "scheduler", "scaler", "model"} and kind_by_name(key) == "model"


@lru_cache(8192)
def kind_by_name(name: str) -> str | None:
    """The kind of object that people call by such a name. Evidence, not proof."""
    last = name.rpartition(".")[2]
    if _ABOUT.search(last):
        return None
    for kind, habit in _HABITS:
        if habit.search(last):
            return kind
    return None


def record(names: list[str], args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """The fields of `Output(loss=loss, logits=logits)`: what a model returns under names."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


_MOST_PARTS = 512


def parameters_within(model: Thing) -> frozenset[str]:
    """The parameter sets of the models that this one holds, at any depth."""
    found: set[str] = set()
    left: list[Thing] = [model]
    seen: set[str] = set()
    while left and len(seen) < _MOST_PARTS:
        here = left.pop()
        if here.id in seen:
            continue
        seen.add(here.id)
        found |= here.sets
        values = [v.became if isinstance(v, Unknown) else v for v in here.attrs.values()]
        left += of_kind(values, "model")
    return frozenset(found)
