"""Where to begin: the script itself, functions nobody calls, methods, and the loops of frameworks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from fallline import api
from fallline.api.framework import COUNTERS
from fallline.api.library import Driver
from fallline.api.values import (
    Const,
    Function,
    Mapping,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
)
from fallline.events import Backward, Deed, Forward, Opaque, Step
from fallline.location import Location
from fallline.reader.arguments import given, instance, pair_up
from fallline.reader.machine import Machine
from fallline.reader.relevance import (
    begins,
    called_names,
    called_under_no_grad,
    evaluates,
    only_frozen,
    steps_in,
    trains,
)
from fallline.syntax import Module
from fallline.syntax.classes import Method, inherited
from fallline.syntax.nodes import below, is_name, methods_of, written

__all__ = ["Root", "roots_of"]

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Root:
    """One place to begin an execution on paper: the qualified name of a function or class, '' for the script."""

    name: str
    run: Callable[[Machine], None]
    callers: frozenset[str] = frozenset()  # functions of this file that call it by its name
    beside: bool = False  # what it reaches is begun on its own as well

    @property
    def last(self) -> str:
        """The name other files would import or call it by."""
        return self.name.partition(".")[0]


def roots_of(module: Module, reached: Container[tuple[str, str]]) -> Iterator[Root]:
    """The places to begin in this file. What was executed meanwhile is not begun again."""
    body = [
        s
        for s in module.tree.body
        if not isinstance(
            s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        )
    ]
    if _worth_beginning(module, body):
        yield Root("", lambda machine: _script(machine, module))
    for cls in module.classes.values():
        yield from _class_roots(module, cls, reached)
    for function, callers in _uncalled(module):
        if (module.path, function.name) not in reached:
            run = partial(_function, module=module, node=function)
            yield Root(function.name, run, frozenset(callers))


def _worth_beginning(module: Module, nodes: list[ast.stmt]) -> bool:
    """Whether to execute these statements for their own sake. A unit test must train: nobody keeps what else it does."""
    return trains(module, nodes) if module.is_unit_test else begins(module, nodes)


def _uncalled(
    module: Module,
) -> list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str]]]:
    """Plain functions that matter, and who in this file calls them; each comes after those who call it.

    `model.train()` calls no function `train`: only a call by the name itself counts, or the name handed over.
    """
    plain = [
        f
        for name, f in module.functions.items()
        if module.class_(f) is None
        and module.function(f) is None
        and _worth_beginning(module, f.body)
    ]
    named = {f.name: f for f in plain}
    called: dict[str, set[str]] = {name: set() for name in named}
    for function in plain:
        for call in below(function, ast.Call):
            for used in (call.func, *call.args):
                if isinstance(used, ast.Name) and used.id in called:
                    called[used.id].add(function.name)
    ordered: dict[str, set[str]] = {}
    for first in sorted(named, key=lambda name: bool(called[name])):
        # depth first, without recursion: each name after those who call it, unless they call each other
        waiting = {first: iter(sorted(called[first]))} if first not in ordered else {}
        while waiting:
            name, callers = next(reversed(waiting.items()))
            caller = next((c for c in callers if c not in ordered and c not in waiting), None)
            if caller is None:
                del waiting[name]
                ordered[name] = called[name] - {name}
            else:
                waiting[caller] = iter(sorted(called[caller]))
    return [(named[name], callers) for name, callers in ordered.items()]


def _script(machine: Machine, module: Module) -> None:
    frame = machine.module_frame(module)
    frame.names["__name__"] = Const("__main__")
    if module.source.cells and module.source.unread:
        machine.bounds.complete = (
            False  # a cell that could not be read may hold what seems to be missing
        )
    with machine.entered(frame):
        if _is_fragment(module):
            _again(machine, partial(_fragment, machine, module), module.tree.body[0], counted=True)
        else:
            machine.run(module.tree.body)


def _is_fragment(module: Module) -> bool:
    """Pasted out of a loop: it imports nothing, and its backward or its step is in no loop."""
    written = bool(module.all(ast.Import)) or bool(module.all(ast.ImportFrom))
    loops = any(isinstance(n, ast.For | ast.While | ast.AsyncFor) for n in module.tree.body)
    return not written and not loops


def _fragment(machine: Machine, module: Module, turn: int) -> None:
    """Its statements, as the loop that they are from would run them."""
    for name in COUNTERS:
        if not module.bindings(name, None):
            machine.frame.names[name] = Const(turn, True)
    machine.run(module.tree.body)


def _function(
    machine: Machine, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    frame = machine.module_frame(module)
    with machine.entered(frame):
        once = _run_by_script(module, node)
        if once:
            machine.around.anomaly = _anomaly_mode(machine, module)
        _repeatedly(machine, Function(node, module), node, once=once)


def _anomaly_mode(machine: Machine, module: Module) -> Location | None:
    """`torch.autograd.set_detect_anomaly(True)` at the top of the script: on before `main()` is called."""
    for statement in module.tree.body:
        match statement:
            case ast.Expr(ast.Call(func, [ast.Constant(True)]) as call):
                if module.resolve(func) == "torch.autograd.set_detect_anomaly":
                    return machine.place(call)
    return None


def _run_by_script(module: Module, node: Definition) -> bool:
    """`main()` at the end of the script, in no loop: it is called once."""
    named = module.calls_by_last_name.get(node.name, ())
    calls = [c for c in named if isinstance(c.func, ast.Name)]
    return bool(calls) and all(module.function(c) is None and not module.in_loop(c) for c in calls)


_TURNS = 3
_AROUND_A_STEP: frozenset[Deed] = frozenset({"backward", "clear", "step", "epoch"})


def _repeatedly(
    machine: Machine,
    function: Function,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    *,
    once: bool = False,
) -> None:
    """Call a function as its unknown caller would: again, if it trains what it was given."""
    here = (function.module, [node])
    if not trains(*here) and not evaluates(*here) and not steps_in(*here):
        # a helper that neither trains nor evaluates: its caller decides whether autograd records
        machine.around.recording = False
    machine.around.unsure = called_under_no_grad(function.module, node) or only_frozen(
        function.module
    )
    found = given(machine, node)
    skip = 1 if function.me is not None else 0
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]][skip:]
    named = {a.arg: found[a.arg] for a in node.args.kwonlyargs}
    named |= {name: value for name, value in found.items() if name.startswith("**")}

    counters = (COUNTERS & set(names)) - _lengths(node)

    def call(turn: int) -> None:
        args: list[Value] = [Const(turn, True) if n in counters else found[n] for n in names]
        _escapes(machine, machine.run_function(function, args, named, node))

    if once:
        call(0)
        return
    _again(machine, call, node, counted=bool(counters), me=function.me)


def _lengths(node: Definition) -> set[str]:
    """Arguments that a loop goes up to, whatever they are called: `def train(self, loader, step=16)`, `for _ in range(step)`."""
    return {
        name.id
        for call in below(node, ast.Call)
        if is_name(call.func, "range")
        for argument in call.args
        for name in below(argument, ast.Name)
    }


def _again(
    machine: Machine,
    call: Callable[[int], None],
    node: ast.AST,
    *,
    counted: bool,
    me: Thing | None = None,
) -> None:
    """One step of somebody else's loop, as often as it takes to see its window. What it makes in `me` outlives the call."""
    steps = turn = idle = 0
    while turn < (machine.loops.length if counted else _TURNS):
        begun, before = len(machine.events), _numbers(me)
        machine.loops.iterations += 1
        looping = machine.loops.trained
        machine.loops.iteration = machine.loops.iterations  # a list that it makes is a new one
        call(turn)
        machine.loops.iteration = 0
        new = machine.events[begun:]
        trained = any(isinstance(e, Backward) for e in new)
        own = {t.id for t in machine.things.values() if t.kind == "optimizer" and t.at is not None}
        stepped = {e.optimizer for e in new if isinstance(e, Step)}
        steps += bool(stepped)
        if not trained and idle < _IDLE and _numbers(me) != before:
            idle += 1  # `self.step += 1; if self.step % self.every != 0: return`
            continue
        if not trained or (stepped and stepped <= own and me is None) or _has_epochs(node):
            break
        if machine.loops.trained > looping:
            if turn == 1:
                break
        elif turn >= _TURNS - 1 and steps > turn:
            break  # it steps every time: there is no window to look for
        elif not turn:
            # what is missing here may be in that loop; but not a division of a loss whose backward is here
            at = machine.place(node)
            could = _AROUND_A_STEP
            if me is not None and stepped and stepped <= own and _never_cleared(machine, me):
                could = could - {"clear"}  # its own optimizer, in a program that clears nothing
            machine.emit(Opaque(at, what="the caller's loop", could=could))
        turn += 1
    if machine.updates.backwards and not steps:
        machine.emit(Opaque(machine.place(node), what="the caller, who has the gradients"))


def _never_cleared(machine: Machine, me: Thing) -> bool:
    """Neither this file nor one beside it clears gradients, or looks at them; nor does a base class out of sight."""
    module = machine.module
    if me.cls is None or me.cls[1].bases:
        return False
    if "zero_grad" in module.source.text or ".grad" in module.source.text:
        return False
    return module.project is None or not module.project.beside(module, b"zero_grad")


def _numbers(me: Thing | None) -> dict[str, object]:
    """What an object counts."""
    attrs = me.attrs if me is not None else {}
    return {name: value.value for name, value in attrs.items() if isinstance(value, Const)}


def _has_epochs(node: ast.AST) -> bool:
    """`for epoch in range(epochs)` around another loop: a whole training, which nobody calls again to continue it."""
    for loop in below(node, ast.For) if isinstance(node, Definition) else ():
        header = written(loop.target) + " " + written(loop.iter)
        if "epoch" in header.lower() and any(below(s, ast.For) for s in loop.body):
            return True
    return False


def _escapes(machine: Machine, result: Value) -> None:
    """What a root returns goes to a caller we do not see: who knows whether it reaches a backward there."""
    left, seen = [result], set[int]()
    while left:
        value = left.pop()
        match value:
            case Sequence() | Mapping() if id(value) in seen:
                continue
            case Sequence(items=items):
                left += items
            case Mapping(items=named):
                left += named.values()
            case Tensor(forwards=forwards, kept=kept) if not _walked(machine, forwards):
                machine.updates.undecided |= forwards | kept
        seen.add(id(value))


def _walked(machine: Machine, forwards: frozenset[int]) -> bool:
    """Each of these forward passes has had its backward: a second one would fail."""
    events = [machine.events[order] for order in forwards if order < len(machine.events)]
    return bool(events) and all(isinstance(e, Forward) and e.used for e in events)


_NOT_BEGUN = frozenset({"__init__", "forward", "compute_loss"})


def _class_roots(
    module: Module, cls: ast.ClassDef, reached: Container[tuple[str, str]]
) -> Iterator[Root]:
    methods = [m for m in cls.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
    for driver in api.drivers():
        if not driver.drives(module, cls):
            continue
        run = partial(_driven, module=module, cls=cls, driver=driver)
        if not driver.method:
            yield Root(cls.name, run)
            return
        if any(m.name == driver.method for m in methods):
            yield Root(f"{cls.name}.{driver.method}", run)
    if module.is_module_class(cls) and not any(
        "backward" in called_names(module, m) for m in methods
    ):
        return
    if module.is_function_class(cls) or any("optim." in b for b in module.bases(cls)):
        return
    wanted = [
        m
        for m in methods
        if (m.name not in _NOT_BEGUN and _worth_beginning(module, m.body)) or _adapts(module, m)
    ]
    wanted += _callers(module, methods, wanted)
    for home, driver_method in _driving(module, cls, wanted):
        run = partial(_method, module=module, cls=cls, method=driver_method, home=home)
        yield Root(f"{cls.name}.{driver_method.name}", run, beside=True)
    called: set[str] = set()
    for method in wanted:
        called |= called_names(module, method) - {f"self.{method.name}"}
    for method in sorted(wanted, key=lambda m: f"self.{m.name}" in called):
        if (module.path, f"{module.qualname(cls)}.{method.name}") not in reached:
            run = partial(_method, module=module, cls=cls, method=method)
            yield Root(f"{cls.name}.{method.name}", run)


def _adapts(module: Module, method: Definition) -> bool:
    """A forward that trains: it fine-tunes on what it is given, with an optimizer of its own."""
    names = called_names(module, method)
    return method.name == "forward" and {"backward", "step"} <= names


def _callers(
    module: Module, methods: list[Definition], wanted: list[Definition]
) -> list[Definition]:
    """Methods that run those that matter (`for epoch in ...: self.run_epoch()`), and those that run them."""
    found: list[Definition] = []
    names = {f"self.{m.name}" for m in wanted}
    left = [m for m in methods if m not in wanted and m.name not in _NOT_BEGUN]
    while new := [m for m in left if not names.isdisjoint(called_names(module, m))]:
        found += new
        names |= {f"self.{m.name}" for m in new}
        left = [m for m in left if m not in new]
    return found


def _driving(module: Module, cls: ast.ClassDef, wanted: list[Definition]) -> list[Method]:
    """Methods of its bases that run those of a class, the outermost: the loop is the base's, the step is the class's own."""
    names = {f"self.{m.name}" for m in wanted}
    left = [(home, m) for home, m in inherited(module, cls) if m.name not in _NOT_BEGUN]
    found: list[Method] = []
    while new := [(h, m) for h, m in left if not names.isdisjoint(called_names(h, m))]:
        found += new
        names |= {f"self.{m.name}" for _, m in new}
        left = [pair for pair in left if pair not in new]
    inner = {name for h, m in found for name in called_names(h, m) - {f"self.{m.name}"}}
    return [(h, m) for h, m in found if f"self.{m.name}" not in inner][:_MOST_DRIVERS]


_MOST_DRIVERS = 2
_IDLE = 8  # calls that only count, before and between those that train


def _method(
    machine: Machine,
    module: Module,
    cls: ast.ClassDef,
    method: ast.FunctionDef | ast.AsyncFunctionDef,
    home: Module | None = None,
) -> None:
    with machine.entered(machine.module_frame(module)):
        me = instance(machine, module, cls)
        _set_later(module, cls, me)
        called = called_names(module, method) | {f"self.{method.name}"}
        _flags_set_by_others(cls, me, "self", called)
        for name, held in me.attrs.items():
            match held:
                case Thing(kind="object", cls=(_, owner)):
                    _flags_set_by_others(owner, held, f"self.{name}", called)
        pair_up(machine, me.attrs)
    with machine.entered(machine.module_frame(home or module)):
        _repeatedly(machine, Function(method, home or module, None, me), method)


def _flags_set_by_others(cls: ast.ClassDef, owner: Thing, said: str, called: Set[str]) -> None:
    """`self.done = False` in `__init__`, and `remember()`, which others call, sets it: it is either when this method is called."""
    later: set[str] = set()
    here: set[str] = set()
    for method in methods_of(cls):
        mine = bool({method.name, f"self.{method.name}"} & called)
        for node in below(method, ast.Attribute) if method.name != "__init__" else ():
            match node:
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    (here if mine else later).add(name)
    for name in later - here:
        match owner.attrs.get(name):
            case Const(bool()):
                owner.attrs[name] = Unknown(f"{said}.{name}")


def _set_later(module: Module, cls: ast.ClassDef, me: Thing) -> None:
    """`self.optimizer = None` in `__init__`, made in `setup()` that somebody calls before the training: it is something then."""
    empty = [n for n, v in me.attrs.items() if isinstance(v, Const) and v.value is None]
    if not empty:
        return
    own = [(module, m) for m in methods_of(cls)]
    made = {
        target.attr
        for _, method in (*own, *inherited(module, cls))
        if method.name != "__init__"
        for node in below(method, ast.Assign)
        if not isinstance(node.value, ast.Constant)
        for targets in node.targets
        for target in (targets.elts if isinstance(targets, ast.Tuple) else [targets])
        if isinstance(target, ast.Attribute) and is_name(target.value, "self")
    }
    for name in empty:
        if name in made and kind_by_name(name) in _MADE_LATER:
            me.attrs[name] = Unknown(f"self.{name}")


_MADE_LATER = frozenset({"optimizer", "scaler", "scheduler", "model", "loader", "criterion"})


def _driven(machine: Machine, module: Module, cls: ast.ClassDef, driver: Driver) -> None:
    with machine.entered(machine.module_frame(module)):
        driver.run(machine, module, cls)
