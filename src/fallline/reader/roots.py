"""Where to begin: the script itself, functions nobody calls, methods, and the hooks of frameworks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial

from fallline.events import Kind
from fallline.reader.call import Call
from fallline.reader.calls import call_function
from fallline.reader.frameworks import is_trainer
from fallline.reader.machine import Machine
from fallline.reader.objects import base_classes, find_method
from fallline.reader.protocol import emit_step
from fallline.reader.relevance import begins, called_names, trains
from fallline.reader.statements import run_block
from fallline.reader.tensors import backward
from fallline.reader.values import (
    Class,
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
from fallline.syntax import Module
from fallline.syntax.module import walk

__all__ = ["Root", "roots_of"]

_LIGHTNING = frozenset({"LightningModule"})
_COUNTERS = frozenset(
    {
        "step",
        "i",
        "idx",
        "batch_idx",
        "batch_index",
        "iteration",
        "it",
        "n_iter",
        "global_step",
        "current_step",
        "step_idx",
    }
)


@dataclass
class Root:
    """One place to begin an execution on paper: the qualified name of a function or class, '' for the script."""

    name: str
    run: Callable[[Machine], None]
    callers: frozenset[str] = frozenset()  # functions of this file that call it by its name

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
    if begins(module, body):
        yield Root("", lambda machine: _script(machine, module))
    for cls in module.classes.values():
        yield from _class_roots(module, cls, reached)
    for function, callers in _uncalled(module):
        if (module.path, function.name) not in reached:
            run = partial(_function, module=module, node=function)
            yield Root(function.name, run, frozenset(callers))


def _uncalled(
    module: Module,
) -> list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str]]]:
    """Plain functions that matter, and who in this file calls them; each comes after those who call it.

    `model.train()` calls no function `train`: only a call by the name itself counts, or the name handed over.
    """
    plain = [
        f
        for name, f in module.functions.items()
        if module.class_(f) is None and module.function(f) is None and begins(module, f.body)
    ]
    named = {f.name: f for f in plain}
    called: dict[str, set[str]] = {name: set() for name in named}
    for function in plain:
        for call in walk(function):
            if isinstance(call, ast.Call):
                for used in (call.func, *call.args):
                    if isinstance(used, ast.Name) and used.id in called:
                        called[used.id].add(function.name)
    ordered: dict[str, set[str]] = {}

    def after_callers(name: str, waiting: tuple[str, ...] = ()) -> None:
        if name in ordered or name in waiting:
            return
        for caller in sorted(called[name]):
            after_callers(caller, (*waiting, name))
        ordered[name] = called[name] - {name}

    for name in sorted(named, key=lambda name: bool(called[name])):
        after_callers(name)
    return [(named[name], callers) for name, callers in ordered.items()]


def _script(machine: Machine, module: Module) -> None:
    frame = machine.module_frame(module)
    frame.names["__name__"] = Const("__main__")
    if module.source.unread:
        machine.complete = False  # a cell that could not be read may hold what seems to be missing
    with machine.entered(frame):
        run_block(machine, module.tree.body)


def _function(
    machine: Machine, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    frame = machine.module_frame(module)
    with machine.entered(frame):
        _repeatedly(machine, Function(node, module), node)


def _repeatedly(
    machine: Machine, function: Function, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    """Call a function as its unknown caller would: again, if it trains what it was given."""
    if not trains(function.module, [node]) and "eval" not in called_names(node):
        # a helper that neither trains nor evaluates: its caller decides whether autograd records
        machine.recording = False
    given = _given(machine, function, node)
    skip = 1 if function.me is not None else 0
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]][skip:]
    for turn in range(3):
        begun = len(machine.events)
        machine.iterations += 1
        looping = machine.training_loops
        args: list[Value] = [Const(turn, True) if n in _COUNTERS else given[n] for n in names]
        named = {a.arg: given[a.arg] for a in node.args.kwonlyargs}
        _escapes(machine, call_function(machine, function, args, named, node))
        new = machine.events[begun:]
        trained = any(e.kind is Kind.BACKWARD for e in new)
        own = {t.id for t in machine.things.values() if t.kind == "optimizer" and t.at is not None}
        stepped = {e.optimizer for e in new if e.kind is Kind.STEP}
        if trained and not stepped:
            machine.emit(Kind.OPAQUE, node, what="the caller, who has the gradients")
        if not trained or (stepped and stepped <= own and function.me is None):
            return
        if machine.training_loops > looping:
            if turn == 1:
                return
        elif not turn:
            # one step of somebody else's loop: what is missing here may be there
            machine.emit(Kind.OPAQUE, node, what="the caller's loop")


def _escapes(machine: Machine, result: Value, depth: int = 4) -> None:
    """What a root returns goes to a caller we do not see: who knows whether it reaches a backward there."""
    if isinstance(result, Sequence | Mapping) and depth:
        items = result.items if isinstance(result, Sequence) else result.items.values()
        for item in list(items):
            _escapes(machine, item, depth - 1)
    elif isinstance(result, Tensor):
        machine.undecided |= result.forwards | result.kept


def _given(
    machine: Machine, function: Function, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> dict[str, Value]:
    """Arguments for a function whose caller is not known: by default, by name, or unknown."""
    spec = node.args
    given: dict[str, Value] = {}
    from fallline.reader.evaluate import evaluate

    positional = [*spec.posonlyargs, *spec.args]
    defaults = [*([None] * (len(positional) - len(spec.defaults))), *spec.defaults]
    for argument, default in [
        *zip(positional, defaults, strict=True),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]:
        name = argument.arg
        value: Value = Unknown(name)
        kind = kind_by_name(name)
        if (
            default is not None
            and isinstance(default, ast.Constant)
            and isinstance(default.value, int)
            and not isinstance(default.value, bool)
        ):
            # a count with a default is still the caller's to choose
            value = Unknown(name)
        elif (
            default is not None
            and isinstance(default, ast.Constant)
            and isinstance(default.value, str)
        ):
            value = Unknown(name)
        elif kind == "model" and default is None:
            machine.become(value, "model")  # type: ignore[arg-type]
        elif kind in {"optimizer", "loader", "criterion"} and default is None and name != "data":
            machine.become(value, kind)  # type: ignore[arg-type]
        elif default is not None and not isinstance(default, ast.Constant):
            value = evaluate(machine, default)
            if isinstance(value, Unknown) and not value.hint:
                value.hint = name
        given[name] = value
    _pair_up(machine, given)
    return given


def _pair_up(machine: Machine, given: dict[str, Value]) -> None:
    """One model and one optimizer handed over together belong together."""
    known = {name: machine.settled(value) for name, value in given.items()}
    models = {n: t for n, t in known.items() if isinstance(t, Thing) and t.kind == "model"}
    optimizers = {n: t for n, t in known.items() if isinstance(t, Thing) and t.kind == "optimizer"}
    if any("parameters" in o.facts for o in optimizers.values()):
        return
    if len(models) == 1 and len(optimizers) == 1:
        pairs = list(zip(optimizers.values(), models.values(), strict=True))
    else:
        pairs = []
        for name, optimizer in optimizers.items():
            rest = re.sub(r"(?i)optimizers?|optimisers?|optim|opt|_", "", name).lower()
            fitting = [
                m
                for n, m in models.items()
                if (rest and re.sub(r"(?i)net|model|_", "", n).lower() == rest) or n.lower() == rest
            ]
            if len(fitting) == 1:
                pairs.append((optimizer, fitting[0]))
        if len(pairs) < len(optimizers):
            return
    for optimizer, model in pairs:
        model.facts["parameters"] = optimizer.facts["parameters"] = frozenset({model.id})


def _class_roots(
    module: Module, cls: ast.ClassDef, reached: Container[tuple[str, str]]
) -> Iterator[Root]:
    bases = {b.rpartition(".")[2] for b in module.bases(cls)}
    methods = [m for m in cls.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]
    if "LightningModule" in bases:
        yield Root(cls.name, lambda machine: _lightning(machine, module, cls))
        return
    if is_trainer((module, cls)):
        compute = next((m for m in methods if m.name == "compute_loss"), None)
        if compute is not None:
            yield Root(
                f"{cls.name}.compute_loss",
                lambda machine: _compute_loss(machine, module, cls, compute),
            )
    if module.is_module_class(cls) and not any("backward" in called_names(m) for m in methods):
        return
    if module.is_function_class(cls) or any("optim." in b for b in module.bases(cls)):
        return
    wanted = [
        m
        for m in methods
        if m.name not in {"__init__", "forward", "compute_loss"} and begins(module, m.body)
    ]
    called: set[str] = set()
    for method in wanted:
        called |= called_names(method) - {f"self.{method.name}"}
    for method in sorted(wanted, key=lambda m: f"self.{m.name}" in called):
        if (module.path, f"{module.qualname(cls)}.{method.name}") not in reached:
            run = partial(_method, module=module, cls=cls, method=method)
            yield Root(f"{cls.name}.{method.name}", run)


def _instance(machine: Machine, module: Module, cls: ast.ClassDef) -> Thing:
    from fallline.reader.objects import construct

    init = find_method(module, cls, "__init__")
    args: list[Value] = []
    kwargs: dict[str, Value] = {}
    if init is not None:
        given = _given(machine, Function(init[1], init[0]), init[1])
        args = [given[a.arg] for a in [*init[1].args.posonlyargs, *init[1].args.args][1:]]
        kwargs = {a.arg: given[a.arg] for a in init[1].args.kwonlyargs}
    made = construct(machine, Class(cls, module), args, kwargs, cls)
    assert isinstance(made, Thing)
    return made


def _method(
    machine: Machine,
    module: Module,
    cls: ast.ClassDef,
    method: ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    with machine.entered(machine.module_frame(module)):
        me = _instance(machine, module, cls)
        _pair_up(machine, me.attrs)
        _repeatedly(machine, Function(method, module, None, me), method)


def _compute_loss(
    machine: Machine,
    module: Module,
    cls: ast.ClassDef,
    method: ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    """A transformers Trainer: the loss that compute_loss returns is divided by the Trainer itself."""
    if _turns_division_off(module, cls):
        return
    with machine.entered(machine.module_frame(module)):
        me = Thing("object", "trainer", None, {}, {}, (module, cls))
        given = _given(machine, Function(method, module, None, me), method)
        names = [a.arg for a in method.args.args][1:]
        result = machine.settled(
            call_function(
                machine, Function(method, module, None, me), [given[n] for n in names], {}, method
            )
        )
        if isinstance(result, Sequence) and result.items:
            result = machine.settled(result.items[0])
        if isinstance(result, Tensor) and result.divided and result.divided_at is not None:
            _framework_backward(machine, result, method, "transformers")


def _turns_division_off(module: Module, cls: ast.ClassDef) -> bool:
    """The Trainer divides unless it is given `compute_loss_func`; trl's own trainers give it, and what they do is not seen."""
    if any(base.startswith("trl.") for base in module.bases(cls)):
        return True
    queue, seen = [(module, cls)], set[int]()
    while queue:
        home, here = queue.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if "compute_loss_func" in home.segment(here):
            return True
        queue += base_classes(home, here)
    return False


def _lightning(machine: Machine, module: Module, cls: ast.ClassDef) -> None:
    """A LightningModule: training_step batch by batch; under automatic optimization the framework does the rest."""
    with machine.entered(machine.module_frame(module)):
        me = _instance(machine, module, cls)
        step = find_method(module, cls, "training_step")
        if step is None:
            return
        _configured(machine, module, cls, me)
        automatic = me.attrs.get("automatic_optimization")
        manual = isinstance(automatic, Const) and not automatic.value
        loader = machine.make("loader", None)
        optimizer = next(
            (t for t in machine.things.values() if t.kind == "optimizer"), None
        ) or machine.make("optimizer", cls)
        me.facts["training"] = True
        machine.loops.append("data")
        try:
            for index in range(machine.length):
                machine.iterations += 1
                machine.iteration = machine.iterations
                machine.begun = [(machine.iteration, len(machine.events))]
                machine.emit(
                    Kind.BATCH,
                    step[1],
                    loader=loader,
                    index=index,
                    last=index == machine.length - 1,
                )
                names = [a.arg for a in step[1].args.args][1:]
                args: list[Value] = [
                    Const(index, True) if n in _COUNTERS else Tensor(False) for n in names
                ]
                result = machine.settled(
                    call_function(machine, Function(step[1], step[0], None, me), args, {}, step[1])
                )
                if not manual:
                    _automatic(machine, result, optimizer, step[1])
        finally:
            machine.loops.pop()
            machine.begun = []
            machine.iteration = 0


def _configured(machine: Machine, module: Module, cls: ast.ClassDef, me: Thing) -> None:
    configure = find_method(module, cls, "configure_optimizers")
    if configure is None:
        return
    made = machine.settled(
        call_function(machine, Function(configure[1], configure[0], None, me), [], {}, configure[1])
    )
    found = [t for t in machine.things.values() if t.kind == "optimizer"]
    if found:
        me.attrs["_optimizers"] = found[0] if len(found) == 1 else Sequence(list(found))
    schedulers: list[Value] = [t for t in machine.things.values() if t.kind == "scheduler"]
    if schedulers:
        me.attrs["_schedulers"] = schedulers[0] if len(schedulers) == 1 else Sequence(schedulers)
    _ = made


def _automatic(machine: Machine, result: Value, optimizer: Thing, node: ast.AST) -> None:
    from fallline.reader.values import Mapping

    loss = (
        machine.settled(result.items.get("loss", Unknown()))
        if isinstance(result, Mapping)
        else result
    )
    if not isinstance(loss, Tensor):
        loss = Tensor(None, divided=None)
    machine.emit(Kind.ZERO_GRAD, node, optimizer=optimizer, clears="grad")
    _framework_backward(machine, loss, node, "lightning")
    emit_step(machine, optimizer, node, "framework")


def _framework_backward(machine: Machine, loss: Tensor, node: ast.AST, framework: str) -> None:
    """The backward that a framework runs on a loss it was handed, placed where the loss was divided."""
    backward(machine, loss, Call(_nowhere(node), [], {}), framework)
    if loss.divided_at is not None:
        machine.events[-1].at = loss.divided_at


def _nowhere(node: ast.AST) -> ast.Call:
    call = ast.Call(ast.Name("backward", ast.Load()), [], [])
    return ast.copy_location(call, node)
