"""The paper machine: the state of one execution on paper, and the events it makes.

It runs a program's own statements with small concrete numbers: a loader has a few batches, an unknown accumulation
count is two. So counters, modulo tests, `continue`, inner loops and last-batch tests need no special case: they are
simply carried out. What cannot be known is `Unknown`; a test on it is a switch (see switches.py).
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fallline.events import OBJECTS, Event, Kind, Trace, describe, make
from fallline.location import Location
from fallline.reader.counts import small
from fallline.reader.switches import Settings
from fallline.reader.values import Const, Thing, Unknown, Value, kind_by_name
from fallline.syntax import Module, Project

__all__ = ["Frame", "Machine", "Stop"]

_FUEL = 30_000
_MOST_EVENTS = 4_000


class Stop(Exception):
    """The bounds of one trace are reached."""


@dataclass(slots=True, eq=False)
class Frame:
    """The names of one function call (or of a module), and the frame around its definition."""

    module: Module
    function: str = ""
    outer: Frame | None = None
    me: Thing | None = None
    names: dict[str, Value] = field(default_factory=dict)
    fresh: dict[str, int] = field(
        default_factory=dict
    )  # name → iteration in which it was last assigned
    closing: bool = False  # the body of a closure given to optimizer.step
    globals: set[str] = field(default_factory=set)


class Machine:
    """One execution on paper."""

    def __init__(
        self,
        project: Project,
        settings: Settings,
        length: int,
        deadline: float,
        expected: tuple[int, ...] = (),
    ) -> None:
        self.project = project
        self.settings = settings
        self.length = length  # batches of a loader whose length is not known
        self.expected = (
            expected  # accumulation windows that an earlier trace of the same program had
        )
        self.deadline = deadline
        self.fuel = _FUEL
        self.complete = True
        self.events: list[Event] = []
        self.things: dict[str, Thing] = {}
        self.frames: list[Frame] = []
        self.callers: tuple[Location, ...] = ()
        self.calling: list[ast.AST] = []  # functions being run, innermost last
        self.reached: set[tuple[str, str]] = set()  # (path, qualified name) of functions that ran
        self.touched: set[str] = set()
        self.returned: Value | None = None
        # what surrounds the statement that runs now
        self.recording = True  # autograd records
        self.autocast: list[str | None] = ["off"]
        self.unsynced: list[str] = []  # ids of models inside no_sync
        self.tests: list[
            tuple[Location, bool, str]
        ] = []  # the ifs around: place, depends on iteration, text
        self.iteration = 0
        self.iterations = 0
        self.passed: list[
            Location
        ] = []  # tests of this iteration that would have jumped and did not
        self.begun: list[
            tuple[int, int]
        ] = []  # of the loops around: this iteration's id, events before it
        self.loops: list[str] = []  # kinds of the loops around (see loops.Stream), innermost last
        self.loop_nodes: list[tuple[Module, ast.AST]] = []
        self.inside_model = 0
        self.anomaly: Location | None = None
        self.halves: set[str] = set()
        self.windows: list[int] = []  # backward passes per step, as they come
        self.backwards = 0
        # backward passes that kept their graph, each with the forward passes in it
        self.retained: list[tuple[Event, frozenset[int]]] = []
        # events of which nobody knows whether a backward reaches them
        self.undecided: set[int] = set()
        self.training_loops = 0  # loops with a backward in them that have ended
        self.data_loops = 0  # those over a loader
        self.results: dict[
            tuple[int, int], Value
        ] = {}  # of calls that only compute: (function, call) → result
        self.parts: dict[object, Thing] = {}  # parts of models by who built them, and of what
        self.compared = 0  # tests decided so far by known numbers
        self._module_frames: dict[str, Frame] = {}
        self._numbers: dict[str, int] = {}
        self.pending = 0  # backward passes since the last step
        self.shrunk: dict[
            int, int
        ] = {}  # literal windows, and in how many micro-batches each is executed
        self.ranges: dict[
            str, int
        ] = {}  # unknown counts that a loop goes up to, and how far it goes
        self._looking: set[tuple[str, str]] = set()

    # -- bounds ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One statement's worth of work; stops the trace at its bounds."""
        self.fuel -= 1
        if self.fuel < 0 or len(self.events) > _MOST_EVENTS:
            self.complete = False
            raise Stop
        if self.fuel % 512 == 0 and time.thread_time() > self.deadline:
            self.complete = False
            raise Stop

    @property
    def work(self) -> int:
        """Statements carried out so far."""
        return _FUEL - self.fuel

    # -- places ------------------------------------------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def module(self) -> Module:
        return self.frames[-1].module

    def place(self, node: ast.AST) -> Location:
        frame = self.frames[-1]
        source = frame.module.source
        known: Location | None = getattr(node, "_place", None)  # asked for again in every iteration
        if known is None or known.function != frame.function or known.path != source.path:
            known = node._place = source.location(node, frame.function)  # type: ignore[attr-defined]
        return known

    def text(self, node: ast.AST) -> str:
        known: str | None = getattr(node, "_text", None)
        if known is None:
            known = node._text = self.module.segment(node)  # type: ignore[attr-defined]
        return known

    def site(self, node: ast.AST) -> str:
        """The identity of a call with the calls that led to it."""
        at = self.place(node)
        return " < ".join(
            [f"{at.path}:{at.line}:{at.column}", *(str(c) for c in reversed(self.callers))]
        )

    # -- things ------------------------------------------------------------------------------------------------

    def make(self, kind: str, node: ast.AST | None, **facts: Any) -> Thing:
        """A new training object."""
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        thing = Thing(
            kind, f"{kind}#{number}", self.place(node) if node is not None else None, facts
        )
        thing.born = len(self.events)
        if kind == "model":
            facts.setdefault("parameters", frozenset({thing.id}))
        self.things[thing.id] = thing
        return thing

    def become(self, unknown: Unknown, kind: str, node: ast.AST | None = None) -> Thing:
        """Something unknown turns out to be a training object; the same one each time."""
        if unknown.became is None:
            same = [t for t in unknown.made_from if t.kind == kind]
            if len(same) == 1 and kind in {"model", "optimizer"}:
                # model = wrap(model): whatever that did, the parameters are most likely the same ones
                unknown.became = same[0]
                return same[0]
            thing = unknown.became = self.make(kind, None)
            thing.facts["assumed"] = True
            if kind == "model":
                thing.facts["parameters"] = frozenset({"?" + thing.id})
        return unknown.became

    def as_kind(self, value: Value, kind: str) -> Thing | None:
        """The value as an object of this kind, if it is one or is called like one."""
        if isinstance(value, Unknown):
            if value.became is not None:
                value = value.became
            elif kind_by_name(value.hint) == kind:
                return self.become(value, kind)
        return value if isinstance(value, Thing) and value.kind == kind else None

    def settled(self, value: Value) -> Value:
        """What an unknown became, or the value itself."""
        return value.became if isinstance(value, Unknown) and value.became is not None else value

    # -- names -------------------------------------------------------------------------------------------------

    def module_frame(self, module: Module) -> Frame:
        """The global names of a module, filled in as they are looked up."""
        frame = self._module_frames.get(module.path)
        if frame is None:
            frame = self._module_frames[module.path] = Frame(module)
            self.touched.add(module.path)
        return frame

    def lookup(self, name: str) -> Value:
        frame: Frame | None = self.frames[-1]
        while frame is not None:
            found = frame.names.get(name)
            if found is not None:
                return found
            frame = frame.outer
        return self.global_name(self.module, name)

    def global_name(self, module: Module, name: str) -> Value:
        """A module's own function, class, import or constant; unknown with its name otherwise."""
        frame = self.module_frame(module)
        found = frame.names.get(name)
        if found is None:
            from fallline.reader import globals as module_globals

            found = module_globals.find(self, module, name)
            frame.names[name] = found
        return found

    def assign(self, name: str, value: Value) -> None:
        frame = self.frames[-1]
        if name in frame.globals:
            frame = self.module_frame(frame.module)
        if isinstance(value, Unknown) and value.became is None and not value.hint:
            value.hint = name
        frame.names[name] = value
        frame.fresh[name] = self.iteration

    # -- events ------------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: Kind | Event,
        node: ast.AST | Location | None = None,
        *,
        optimizer: Thing | None = None,
        scaler: Thing | None = None,
        model: Thing | None = None,
        scheduler: Thing | None = None,
        loader: Thing | None = None,
        **facts: Any,
    ) -> Event:
        """Add an event, made here of a kind and its facts (for the transition) or given whole."""
        if isinstance(kind, Event):
            event = kind
        else:
            assert node is not None
            event = make(
                kind,
                node if isinstance(node, Location) else self.place(node),
                optimizer=optimizer.id if optimizer else None,
                scaler=scaler.id if scaler else None,
                model=model.id if model else None,
                scheduler=scheduler.id if scheduler else None,
                loader=loader.id if loader else None,
                **facts,
            )
        if event.parameters is not None and _unclear(event.parameters):
            event.parameters = None
        event.callers, event.order = self.callers, len(self.events)
        self.events.append(event)
        if event.kind is Kind.BACKWARD:
            self.backwards += 1
            self.pending += 1
        elif event.kind is Kind.STEP:
            self.windows.append(self.pending)
            self.pending = 0
        return event

    def small(self, number: int) -> int:
        """A large literal count as it is executed on paper; the last of a shrunk window stays its last."""
        for offset in (0, 1, -1):
            if number + offset in self.shrunk:
                return self.shrunk[number + offset] - offset
        return small(number)

    def boundary(self) -> Location | None:
        """The innermost test around that depends on the iteration."""
        around = next((at for at, varying, _ in reversed(self.tests) if varying), None)
        return around or (self.passed[-1] if self.passed else None)

    def outlives(self, born: int, forwards: frozenset[int]) -> bool:
        """Whether something made in iteration `born` outlives an iteration in which these forward passes ran."""
        for iteration, events in self.begun:
            if iteration > born:
                return any(order >= events for order in forwards)
        return False

    def worth(self, matters: int) -> int:
        """How much a choice matters here: inside a model it gives the model its shape, unless the protocol is right there."""
        return 0 if self.inside_model and matters < 2 else matters

    # -- surroundings ------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, test: Location, varying: bool, text: str) -> Iterator[None]:
        self.tests.append((test, varying, text))
        try:
            yield
        finally:
            self.tests.pop()

    @contextmanager
    def entered(self, frame: Frame) -> Iterator[None]:
        self.frames.append(frame)
        try:
            yield
        finally:
            self.frames.pop()

    # -- the result --------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """What was executed, as rules see it."""
        if not self.complete and self.events:
            self.emit(Kind.OPAQUE, self.events[-1].at, what="the rest of the program")
        # what reaches a backward once does so again, past the end of this trace
        reaching = {
            (e.kind, e.at, e.callers)
            for e in self.events
            if e.fact("used") or e.fact("reaches_backward")
        }
        for event in self.events:
            if event.order in self.undecided:
                continue
            again = (event.kind, event.at, event.callers) in reaching
            if event.kind is Kind.FORWARD and (again or self.complete):
                event.facts.setdefault("used", again)
            if event.kind is Kind.KEEP and (again or self.complete):
                event.facts.setdefault("reaches_backward", again)
            if event.kind is Kind.BACKWARD and event.fact("retain_graph"):
                event.facts.setdefault("second", False)
        return Trace(
            self.events,
            [
                describe(t.kind, t.id, t.at, born=t.born, **_known(t.kind, t.facts))
                for t in self.things.values()
                if t.kind in OBJECTS
            ],
            settings=self.settings.words(),
            complete=self.complete,
        )


def _known(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in facts.items()
        if name in OBJECTS[kind].__dataclass_fields__
        and not (name == "parameters" and _unclear(value))
    }


def _unclear(sets: Any) -> bool:
    """Parameter sets of models that were only assumed: which optimizer holds them is not known."""
    return not sets or any(name.startswith("?") for name in sets)


def count_of(machine: Machine, value: Value) -> int | None:
    """A whole number for a value: itself, or a small assumed one where the name says it is a count."""
    if (
        isinstance(value, Const)
        and isinstance(value.value, int)
        and not isinstance(value.value, bool)
    ):
        return value.value
    if isinstance(value, Unknown) and value.became is None and value.hint:
        return machine.settings.count(value.hint)
    return None
