"""What the handler of a call may ask of the execution on paper that it is part of, and do to it.

A handler gets a `Paper`: it makes values (`make`, `become`), emits events (`emit`), asks what is around the call
(`around`, `loops`) and takes a choice that the text leaves open (`switch`, `count`). The reader's machine is one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fallline.api.call import Call
from fallline.api.values import Const, Tensor, Thing, Unknown, Value
from fallline.events import Backward, Event, Keep
from fallline.location import Location
from fallline.syntax import Module

__all__ = ["Around", "Loops", "Paper", "Test", "Updates", "count_of", "orders"]

E = TypeVar("E", bound=Event)


@dataclass(slots=True)
class Test:
    """An if around the statement that runs now."""

    at: Location
    varying: bool  # it depends on the iteration
    text: str


@dataclass(slots=True)
class Around:
    """What surrounds the statement that runs now."""

    recording: bool = True  # autograd records
    unsure: bool = False  # in evaluation it may not: some caller that was not followed turns it off
    autocast: list[str | None] = field(default_factory=lambda: ["off"])
    unsynced: list[str] = field(default_factory=list)  # ids of models inside no_sync
    anomaly: Location | None = None  # where detect_anomaly was turned on
    tests: list[Test] = field(default_factory=list)  # the ifs, innermost last
    inside_model: int = 0  # forward passes and constructors of modules that run
    caught: int = 0  # try statements of this loop that catch what a backward raises
    tried: int = 0  # try statements around, whatever they catch
    closing: bool = False  # in a closure given to optimizer.step
    scales: bool = False  # in a context that scales losses and unscales gradients by itself
    still_scaled: bool = False  # ... and unscales them only where it ends

    def every_so_often(self) -> Location | None:
        """The innermost test that holds once in a while, also where it cannot be followed: `if self.step % self.every == 0`."""
        return next((t.at for t in reversed(self.tests) if t.varying or "%" in t.text), None)


@dataclass(slots=True)
class Loops:
    """The loops around the statement that runs now, and those that have ended."""

    length: int  # batches of a loader whose length is not known
    expected: tuple[int, ...] = ()  # windows that an earlier trace of the same program had
    kinds: list[str] = field(default_factory=list)  # see reader.streams.Stream, innermost last
    nodes: list[tuple[Module, ast.AST]] = field(default_factory=list)
    # how often each of those goes round, where that is decided when it begins
    counts: list[int | None] = field(default_factory=list)
    ends: list[Value | None] = field(default_factory=list)  # what `range(...)` of each goes up to
    # of each loop: this iteration's id, events before it
    begun: list[tuple[int, int]] = field(default_factory=list)
    iteration: int = 0  # id of the innermost iteration; 0 outside every loop
    iterations: int = 0  # ids given so far
    passed: list[Location] = field(
        default_factory=list
    )  # tests of this iteration that did not jump
    fed: int = 0  # how many of them go over a loader
    trained: int = 0  # loops with a backward in them that have ended
    over_data: int = 0  # those over a loader

    def outlives(self, born: int, forwards: frozenset[int]) -> bool:
        """Whether something made in iteration `born` outlives an iteration in which these forward passes ran."""
        for iteration, events in self.begun:
            if iteration > born:
                return any(order >= events for order in forwards)
        return False

    def rounds(self, number: Value) -> bool:
        """Whether a loop outside of the innermost goes round so often."""
        return any(end is not None and _same_number(end, number) for end in self.ends[:-1])

    def enter(self) -> None:
        """A framework goes over a loader."""
        self.kinds.append("data")
        self.begun.append((0, 0))

    def leave(self, trained: bool) -> None:
        """It has: with a backward pass or without."""
        self.kinds.pop()
        self.begun.pop()
        self.iteration = 0
        self.trained += trained
        self.over_data += trained

    def next(self, events: int) -> None:
        """The innermost loop begins another iteration, after so many events."""
        self.iterations += 1
        self.iteration = self.iterations
        self.begun[-1] = (self.iteration, events)
        self.passed.clear()


@dataclass(slots=True)
class Updates:
    """Backward passes and steps, as they come."""

    windows: list[int] = field(default_factory=list)  # backward passes per step
    pending: int = 0  # backward passes since the last step
    backwards: int = 0
    # backward passes that kept their graph, each with the forward passes in it
    retained: list[tuple[Backward, frozenset[int]]] = field(default_factory=list)
    # what was presumed of losses that a backward walked: the calls that returned them give a graph
    walked: set[str] = field(default_factory=set)
    # what was kept that may have no graph, until its backward shows that it has
    perhaps: list[tuple[Tensor, Keep]] = field(default_factory=list)
    # events of which nobody knows whether a backward reaches them
    undecided: set[int] = field(default_factory=set)


class Paper(Protocol):
    """One execution on paper, as far as the knowledge of an API needs it."""

    events: list[Event]
    things: dict[str, Thing]
    around: Around
    loops: Loops
    updates: Updates

    # values
    def make(self, kind: str, node: ast.AST | None, **facts: Any) -> Thing:
        """A new training object."""

    def become(self, unknown: Unknown, kind: str) -> Thing:
        """Something unknown turns out to be a training object; the same one each time."""

    def as_kind(self, value: Value, kind: str) -> Thing | None:
        """The value as an object of this kind, if it is one or is called like one."""

    def settled(self, value: Value) -> Value:
        """What an unknown became, or the value itself."""

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """`value.name`."""

    def call(self, target: Value, call: Call) -> Value:
        """Call something."""

    def run_method(
        self, thing: Thing, name: str, call: Call, calls: frozenset[str] | None = None
    ) -> Value | None:
        """Run a method that the project defines; None where it defines none, or none that calls one of `calls`."""

    def instance(self, module: Module, cls: ast.ClassDef) -> Thing:
        """An instance of a class that nobody is seen to make."""

    def given(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Value]:
        """Arguments for a function that nobody is seen to call, by name."""

    # events
    def emit(self, event: E) -> E:
        """Something happens here. (Nothing does, and the event has no place in the order, in a value looked up aside.)"""

    def batches(self, loader: Thing) -> int:
        """How many batches a loader gives in this execution."""

    def over(self, loader: Thing, node: ast.AST) -> Iterator[int]:
        """Go over a loader as a framework does, batch by batch."""

    # the text
    @property
    def module(self) -> Module:
        """The file that runs now."""

    def modules(self) -> Iterable[Module]:
        """The files on the way to here."""

    def place(self, node: ast.AST) -> Location: ...
    def text(self, node: ast.AST) -> str: ...
    def site(self, node: ast.AST) -> str:
        """The identity of a call with the calls that led to it."""

    def outside(self, node: ast.AST) -> Location:
        """Where a model is called from, seen from outside its own methods."""

    def boundary(self) -> Location | None:
        """The innermost test around that depends on the iteration."""

    def evaluates(self) -> bool:
        """Whether a loop is around that does not train."""

    def in_batch(self) -> bool:
        """Whether the innermost loop around trains batch by batch."""

    # what the text leaves open
    def switch(self, key: str, usual: bool, matters: int = 2) -> bool:
        """A test that cannot be decided: one value for the whole execution."""

    def count(self, key: str) -> int:
        """A small number for a count that is not known."""

    def offers(self, option: str) -> bool:
        """Whether the program may have an option of this name."""


def _same_number(a: Value, b: Value) -> bool:
    match a, b:
        case Const(int(known)), Const(int(other)):
            return known == other
        case Unknown(became=None, hint=hint), Unknown(became=None, hint=again):
            return hint == again != ""
    return False


def count_of(paper: Paper, value: Value) -> int | None:
    """A whole number for a value: itself, or a small assumed one where the name says it is a count."""
    match value:
        case Const(bool()):
            return None
        case Const(int(number)):
            return number
        case Unknown(became=None, hint=hint) if hint:
            return paper.count(hint)
    return None


def orders(event: Event | None) -> frozenset[int]:
    """Where an event is in the execution; empty where it has no place in it."""
    return frozenset({event.order}) if event is not None and event.order >= 0 else frozenset()
