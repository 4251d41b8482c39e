"""The paper machine: the state of one execution on paper, and the events it makes.

It runs a program's own statements with small concrete numbers: a loader has a few batches, an unknown accumulation
count is two. So counters, modulo tests, `continue`, inner loops and last-batch tests need no special case: they are
simply carried out. What cannot be known is `Unknown`; a test on it is a switch (see switches.py).

Expressions hold calls, calls run statements, statements hold expressions: each goes through the machine
(`evaluate`, `call`, `run`), which was given what it can carry out as its `Language` (put together in language.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from fallline.api.call import Call
from fallline.api.paper import Around, Loops, Test, Updates
from fallline.api.values import (
    Function,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
    parameters_within,
)
from fallline.events import (
    OBJECTS,
    Backward,
    Batch,
    Event,
    Forward,
    Keep,
    Opaque,
    Step,
    Strength,
    Trace,
    ZeroGrad,
    describe,
)
from fallline.flow.options import default_of, off_at_zero, offered, stays
from fallline.location import Location
from fallline.reader.counts import Counts
from fallline.reader.relevance import acts_here, called_names, trains
from fallline.reader.state import Bounds, Frame, Stop
from fallline.reader.switches import Settings
from fallline.syntax import Module, Project
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, methods_called

__all__ = ["Language", "Machine"]

E = TypeVar("E", bound=Event)

_DOTTED = re.compile(r"[A-Za-z_][\w.]*")
_MACHINES = re.compile(r"(?i)gpu|node|rank|world|proc|device|worker|machine")


@dataclass(frozen=True)
class Language:
    """What the machine can carry out: one function for each kind of statement and expression, and for calls."""

    statements: Mapping[type, Callable[[Machine, Any], str | None]]
    expressions: Mapping[type, Callable[[Machine, Any], Value]]
    attribute: Callable[[Machine, Value, str, ast.AST], Value]
    call: Callable[[Machine, Value, Call], Value]
    run_function: Callable[..., Value]
    global_name: Callable[[Machine, Module, str], Value]
    instance: Callable[[Machine, Module, ast.ClassDef], Thing]
    given: Callable[[Machine, ast.FunctionDef | ast.AsyncFunctionDef], dict[str, Value]]
    batches: Callable[[Machine, Thing], int]


class Machine:
    """One execution on paper. Implements `fallline.api.paper.Paper` for the handlers of calls."""

    def __init__(
        self,
        language: Language,
        project: Project,
        settings: Settings,
        loops: Loops,
        bounds: Bounds,
    ) -> None:
        self.language = language
        self._expressions = language.expressions  # millions of times in a project
        self.project = project
        self.settings = settings
        self.bounds = bounds
        # what happened
        self.events: list[Event] = []
        self.updates = Updates()
        self.reached: set[tuple[str, str]] = set()  # (path, qualified name) of functions that ran
        self.touched: set[str] = set()  # files that had a part in it
        self.aside = False  # see `looking`
        # what surrounds the statement that runs now
        self.around = Around()
        self.loops = loops
        self.frames: list[Frame] = []
        self.callers: tuple[Location, ...] = ()
        self.calling: list[ast.AST] = []  # functions being run, innermost last
        self.returned: Value | None = None
        # what there is
        self.things: dict[str, Thing] = {}
        self.counts = Counts()
        # of calls that only compute: (function, call) → result; and parts of models by who built them, and of what
        self.results: dict[tuple[int, int], Value] = {}
        self.parts: dict[object, Thing] = {}
        self._module_frames: dict[str, Frame] = {}
        self._numbers: dict[str, int] = {}

    # -- carrying out ------------------------------------------------------------------------------------------

    def run(self, statements: Sequence[ast.stmt]) -> str | None:
        """Run statements until one of them jumps; the kind of jump, or None."""
        handlers = self.language.statements
        for statement in statements:
            self.bounds.tick(len(self.events))
            handler = handlers.get(statement.__class__)
            if handler is not None:
                jump = handler(self, statement)
                if jump is not None:
                    return jump
        return None

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression on paper."""
        handler = self._expressions.get(node.__class__)
        return handler(self, node) if handler is not None else Unknown()

    def attribute(self, value: Value, name: str, node: ast.AST) -> Value:
        """`value.name`."""
        return self.language.attribute(self, value, name, node)

    def call(self, target: Value, call: Call) -> Value:
        """Call something."""
        return self.language.call(self, target, call)

    def run_function(
        self,
        function: Function,
        args: list[Value],
        kwargs: dict[str, Value],
        node: ast.AST,
        always: bool = False,
    ) -> Value:
        """Run a function of the project where it is called; `always`: also a long one that only computes."""
        return self.language.run_function(self, function, args, kwargs, node, always)

    def run_method(
        self, thing: Thing, name: str, call: Call, calls: frozenset[str] | None = None
    ) -> Value | None:
        """Run a method that the project defines; None where it defines none, or none that calls one of `calls`."""
        method = find_method(*thing.cls, name) if thing.cls is not None else None
        if method is None:
            return None
        if calls is not None and called_names(*method).isdisjoint(calls):
            return None
        function = Function(method[1], method[0], None, thing)
        return self.run_function(function, call.args, call.kwargs, call.node, calls is not None)

    def instance(self, module: Module, cls: ast.ClassDef) -> Thing:
        """An instance of a class that nobody is seen to make."""
        return self.language.instance(self, module, cls)

    def given(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Value]:
        """Arguments for a function that nobody is seen to call, by name."""
        return self.language.given(self, function)

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
        places = frame.module.notes("place")  # asked for again in every iteration
        known: Location | None = places.get(node)
        if known is None or known.function != frame.function:
            known = places[node] = source.location(node, frame.function)
        return known

    def text(self, node: ast.AST) -> str:
        texts = self.module.notes("text")
        known: str | None = texts.get(node)
        if known is None:
            known = texts[node] = self.module.segment(node)
        return known

    def site(self, node: ast.AST) -> str:
        """The identity of a call with the calls that led to it."""
        at = self.place(node)
        return " < ".join(
            [f"{at.path}:{at.line}:{at.column}", *(str(c) for c in reversed(self.callers))]
        )

    def outside(self, node: ast.AST) -> Location:
        """Where a model is called from: for a part called in one of the model's own methods, where that method was called."""
        depth = 0
        for frame, function in zip(reversed(self.frames), reversed(self.calling), strict=False):
            if frame.me is None or frame.me.kind != "model" or acts_here(frame.module, [function]):
                break
            depth += 1
        return self.callers[-depth] if 0 < depth <= len(self.callers) else self.place(node)

    def modules(self) -> list[Module]:
        """The files on the way to here."""
        return list({id(frame.module): frame.module for frame in self.frames}.values())

    # -- things ------------------------------------------------------------------------------------------------

    def make(self, kind: str, node: ast.AST | None, **facts: Any) -> Thing:
        """A new training object."""
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        at = self.place(node) if node is not None else None
        thing = Thing(kind, f"{kind}#{number}", at, facts, born=len(self.events))
        if kind == "model":
            facts.setdefault("parameters", frozenset({thing.id}))
        self.things[thing.id] = thing
        return thing

    def become(self, unknown: Unknown, kind: str) -> Thing:
        """Something unknown turns out to be a training object; the same one each time."""
        if unknown.became is None:
            same = [t for t in unknown.made_from if t.kind == kind]
            if len(same) == 1 and kind in {"model", "optimizer"}:
                # model = wrap(model): whatever that did, the parameters are most likely the same ones
                unknown.became = same[0]
                return same[0]
            thing = unknown.became = self.make(kind, None)
            thing.born = thing.born if unknown.since is None else unknown.since
            seen = "PRESUMED" if kind_by_name(unknown.hint) == kind else "INFERRED"
            thing.facts |= {"strength": Strength[seen], "name": unknown.hint}
            # what was asked of it before it was known stays the same: `policy.optimizer`
            thing.attrs |= {n: part for n, part in unknown.parts.items() if part.became is not None}
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
            found = frame.names[name] = self.language.global_name(self, module, name)
        return found

    def assign(self, name: str, value: Value) -> None:
        frame = self.frames[-1]
        if name in frame.globals:
            frame = self.module_frame(frame.module)
        if isinstance(value, Unknown) and value.became is None and not value.hint:
            value.hint = name
        self.name_tensor(value)
        frame.names[name] = value
        frame.fresh[name] = self.loops.iteration

    def name_tensor(self, value: Value) -> None:
        """A tensor that gets its first name is as old as this iteration; something unknown is there from here on."""
        if isinstance(value, Tensor) and value.born is None:
            value.born = self.loops.iteration
        elif isinstance(value, Unknown) and value.since is None:
            value.since = len(self.events)

    # -- events ------------------------------------------------------------------------------------------------

    def emit(self, event: E) -> E:
        """Something happens here."""
        if event.parameters is not None and _unclear(event.parameters):
            event.parameters = None
        event.callers = self.callers
        if self.aside:
            event.order = -1
            return event
        event.order = len(self.events)
        self.events.append(event)
        if isinstance(event, Backward):
            self.updates.backwards += 1
            self.updates.pending += 1
        elif isinstance(event, Step):
            self.updates.windows.append(self.updates.pending)
            self.updates.pending = 0
            event.optional = self._optional()
            event.other_way = self._other_way()
        elif isinstance(event, ZeroGrad):
            event.boundary = self.around.every_so_often() or self.boundary()
        return event

    def fail(self) -> NoReturn:
        """The program ends here with an exception: what would follow does not happen, and what is missing means nothing."""
        self.bounds.complete = False
        self.settings.failed = True
        raise Stop

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A value is looked up aside from the execution: whatever its making does has no part in it."""
        before, self.aside = self.aside, True
        try:
            yield
        finally:
            self.aside = before

    def batches(self, loader: Thing) -> int:
        """How many batches a loader gives in this trace."""
        return self.language.batches(self, loader)

    def over(self, loader: Thing, node: ast.AST) -> Iterator[int]:
        """Go over a loader as a framework does, batch by batch."""
        self.loops.enter()
        backwards = self.updates.backwards
        try:
            for index in range(self.loops.length):
                self.loops.next(len(self.events))
                self.emit(Batch(self.place(node), loader=loader.id))
                yield index
        finally:
            self.loops.leave(self.updates.backwards > backwards)

    def boundary(self) -> Location | None:
        """The innermost test around that depends on the iteration."""
        around = next((test.at for test in reversed(self.around.tests) if test.varying), None)
        return around or (self.loops.passed[-1] if self.loops.passed else None)

    def _other_way(self) -> bool | None:
        """Whether the innermost test that depends on the iteration also asks for something else: `... or is_last`."""
        test = next((test for test in reversed(self.around.tests) if test.varying), None)
        return (test is not None and " or " in test.text) or None

    def _optional(self) -> str | None:
        """The count in the innermost test that depends on the iteration, if nothing shows it above 1: `args.accumulation_steps`."""
        test = next((test for test in reversed(self.around.tests) if test.varying), None)
        for name in _DOTTED.findall(test.text) if test is not None else ():
            last = name.rpartition(".")[2]
            assumed = any(key.startswith("#") and key.endswith(last) for key in self.settings.met)
            if assumed and all(default_of(m, last) in {None, 1} for m in self.modules()):
                return str(name)
        return None

    def evaluates(self) -> bool:
        """Whether a loop is around that does not train: over the batches of an evaluation, over samples."""
        return "items" in self.loops.kinds or any(
            not trains(module, [loop]) for module, loop in self.loops.nodes
        )

    def in_batch(self) -> bool:
        """The innermost loop around is one that trains batch by batch, not the epoch loop around it."""
        if "data" in self.loops.kinds:
            return True
        if not self.loops.nodes:
            return False
        module, loop = self.loops.nodes[-1]
        known = module.notes("trains batch by batch")  # asked for again in every iteration
        if loop not in known:
            inner = [n for n in below(loop, ast.For, ast.While) if n is not loop]
            own = not _BACKWARDS.isdisjoint(methods_called(loop))
            known[loop] = own and not trains(module, inner)
        return bool(known[loop])

    def worth(self, matters: int) -> int:
        """How much a choice matters here: inside a model it gives the model its shape, unless the protocol is right there."""
        return 0 if self.around.inside_model and matters < 2 else matters

    def switch(self, key: str, usual: bool, matters: int = 2) -> bool:
        """A test that cannot be decided: one value for the whole execution."""
        return self.settings.switch(key, usual, matters, off_at_zero(self.modules(), key))

    def count(self, key: str, *, compared: bool = False) -> int:
        """A small number for a count that is not known. `compared` when a test asks whether it is one or more."""
        # how many machines there are is up to whoever runs it; other counts are as the project has them
        of_project = _DOTTED.fullmatch(key) and not _MACHINES.search(key)
        one = bool(of_project) and stays(self.modules(), key.rpartition(".")[2], 1)
        return self.settings.count(key, compared=compared, one=one)

    def offers(self, option: str) -> bool:
        """Whether the program may have an option of this name."""
        return offered(self.modules(), option)

    # -- surroundings ------------------------------------------------------------------------------------------

    @contextmanager
    def inside(self, test: Location, varying: bool, text: str) -> Iterator[None]:
        self.around.tests.append(Test(test, varying, text))
        try:
            yield
        finally:
            self.around.tests.pop()

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
        if not self.bounds.complete and self.events:
            self.emit(Opaque(self.events[-1].at, what="the rest of the program"))
        self._settle()
        for thing in self.things.values():
            if thing.kind == "model" and not _unclear(thing.facts.get("parameters")):
                thing.facts["parts"] = parameters_within(thing)
        return Trace(
            self.events,
            [
                describe(t.kind, t.id, t.at, born=t.born, **_known(t.kind, t.facts))
                for t in self.things.values()
                if t.kind in OBJECTS
            ],
            settings=self.settings.words(),
            edited=self.settings.edited,
            complete=self.bounds.complete,
        )

    def _settle(self) -> None:
        """What reaches a backward once does so again, past the end of this trace."""
        reaching = {(e.kind, e.at, e.callers) for e in self.events if _reaches_backward(e)}
        for event in self.events:
            if event.order in self.updates.undecided:
                continue
            again = (event.kind, event.at, event.callers) in reaching
            decided = again or self.bounds.complete
            match event:
                case Forward(used=None) if decided:
                    event.used = again
                case Keep(reaches_backward=None) if decided:
                    event.reaches_backward = again
                case Backward(second=None, retain_graph=True):
                    event.second = False


_BACKWARDS = frozenset({"backward", "manual_backward"})


def _reaches_backward(event: Event) -> bool:
    match event:
        case Forward(used=True) | Keep(reaches_backward=True):
            return True
    return False


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
