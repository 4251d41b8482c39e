"""Functions of the project, run in line where they are called."""

from __future__ import annotations

import ast
import re
from contextlib import AbstractContextManager, ExitStack, nullcontext

from fallline.api.arithmetic import merged
from fallline.api.torch.model import shaped
from fallline.api.values import (
    NONE,
    Class,
    Function,
    Mapping,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
    replace,
)
from fallline.events import SamplerEpoch
from fallline.reader.contexts import decorated, grad_decorators
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts, called_names, makes, relevant
from fallline.reader.state import Frame
from fallline.syntax import Module
from fallline.syntax.nodes import below, children, walk, written
from fallline.syntax.once import once

__all__ = ["run_function"]

_DEEPEST = 14
_DIVIDES = re.compile(r"div|mean|norm|scale|average|reduc|loss")
_LARGE = 12  # statements above which a function that only computes is not run


def run_function(
    machine: Machine,
    function: Function,
    args: list[Value],
    kwargs: dict[str, Value],
    node: ast.AST,
    always: bool = False,
) -> Value:
    """Run a function of the project where it is called; `always`: also a long one that only computes."""
    body = function.node
    if len(machine.calling) >= _DEEPEST or machine.calling.count(body) > 1:
        return Unknown()
    key = (id(body), id(node))
    if key in machine.results:
        return shaped(machine.results[key], _tensor_of(args, kwargs), machine.around.recording)
    if not isinstance(body, ast.Lambda) and _generates(function.module, body):
        if any("contextmanager" in written(d) for d in body.decorator_list):
            scope = function.scope or machine.module_frame(function.module)
            frame = Frame(function.module, body.name, scope, function.me)
            _bind(machine, function, frame, args, kwargs)
            return Function(function.node, function.module, function.scope, function.me, frame)
        return _generator(machine, function, [*args, *kwargs.values()], node)
    if not always and _passed_over(machine, function, [*args, *kwargs.values()]):
        found = _tensor_of(args, kwargs)
        found = (
            found if not _divides(function.module, function.node) else replace(found, divided=None)
        )
        return shaped(Unknown(), found, machine.around.recording)
    name = _qualname(function.module, function.node)
    machine.reached.add((function.module.path, name))
    machine.touched.add(function.module.path)
    frame = Frame(function.module, name, function.scope, function.me)
    _bind(machine, function, frame, args, kwargs)
    caller = machine.place(node)
    outer = machine.callers
    machine.callers = (*outer, caller)
    machine.calling.append(body)
    begun = len(machine.events)
    try:
        with _surroundings(machine, function), machine.entered(frame):
            if isinstance(body, ast.Lambda):
                return machine.evaluate(body.body)
            machine.returned = None
            machine.run(body.body)
            result, machine.returned = machine.returned, None
            result = result if result is not None else NONE
            if len(machine.events) == begun and _only_computes(function, result):
                machine.results[key] = result
            return _recorded(machine, result, args)
    finally:
        machine.calling.pop()
        machine.callers = outer


@once
def _divides(module: Module, function: ast.AST) -> bool:
    """Whether a function that is not run may divide what it is given: it, or a function it calls, by the look of it."""
    return any(map(_may_divide, walk(function)))


def _may_divide(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return True
        case ast.Call(ast.Attribute(attr=name) | ast.Name(name)):
            return _DIVIDES.search(name) is not None
    return False


_qualname = once(Module.qualname)


def _surroundings(machine: Machine, function: Function) -> AbstractContextManager[object]:
    """What the decorators of a function put around it."""
    decorators = grad_decorators(function.module, function.node)
    if not decorators:
        return _NOTHING
    stack = ExitStack()
    decorated(machine, function, decorators, stack)
    return stack


_NOTHING = nullcontext()


def _bind(
    machine: Machine, function: Function, frame: Frame, args: list[Value], kwargs: dict[str, Value]
) -> None:
    spec = function.node.args
    names = [a.arg for a in [*spec.posonlyargs, *spec.args]]
    given = list(args)
    if function.me is not None and names and not isinstance(function.node, ast.Lambda):
        frame.names[names[0]] = function.me
        names = names[1:]
    for name, value in zip(names, given, strict=False):
        machine.name_tensor(value)
        frame.names[name] = value
        frame.fresh[name] = machine.loops.iteration
    if spec.vararg is not None:
        frame.names[spec.vararg.arg] = Sequence(given[len(names) :], machine.loops.iteration)
    keyword_only = [a.arg for a in spec.kwonlyargs]
    rest: dict[object, Value] = {}
    for name, value in kwargs.items():
        if name in names or name in keyword_only:
            frame.names[name] = value
        else:
            rest[name] = value
    if spec.kwarg is not None:
        # a caller who is not in view gives them as a whole: see `given`
        frame.names[spec.kwarg.arg] = kwargs.get(
            f"**{spec.kwarg.arg}", Mapping(rest, machine.loops.iteration)
        )
    defaults = [
        *([None] * (len(spec.posonlyargs) + len(spec.args) - len(spec.defaults))),
        *spec.defaults,
    ]
    all_names = [a.arg for a in [*spec.posonlyargs, *spec.args]]
    pairs = [
        *zip(all_names, defaults, strict=True),
        *zip(keyword_only, spec.kw_defaults, strict=True),
    ]
    for name, default in pairs:
        if name in frame.names:
            continue
        if default is None:
            frame.names[name] = Unknown(name)
            continue
        with machine.entered(machine.module_frame(function.module)):
            frame.names[name] = machine.evaluate(default)


def _passed_over(machine: Machine, function: Function, given: list[Value]) -> bool:
    """A long function with no part in the protocol, and nothing of it handed over."""
    node, kept = function.node, function.module.notes("large")
    large = kept.get(node)
    if large is None:
        large = kept[node] = (
            sum(isinstance(n, ast.stmt) for n in walk(node)) > _LARGE
            and not makes(function.module, [node])
            and not acts(function.module, [node])
            and not _makes_a_schedule(machine, function)
        )
    if not large:
        return False
    me = function.me
    held = [*given, *(me.attrs.values() if me is not None and me.kind == "object" else ())]
    kinds = _PROTOCOL | {"loader"} if getattr(node, "name", "") == "__init__" else _PROTOCOL
    return not any(
        isinstance(value, Function) or (isinstance(value, Thing) and value.kind in kinds)
        for value in map(machine.settled, _opened(held))
    )


def _opened(held: list[Value]) -> list[Value]:
    """What is handed over, and what is in the lists and dicts among it: `Trainer(optimizer={"generator": ...})`."""
    found = list(held)
    for value in held:
        match value:
            case Sequence(items=items):
                found += items
            case Mapping(items=named):
                found += named.values()
    return found


def _makes_a_schedule(machine: Machine, function: Function) -> bool:
    """It calls an object of the project a scheduler: what the class does decides, not that name."""
    for node in walk(function.node):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(maker))):
                if kind_by_name(name) == "scheduler":
                    if isinstance(machine.global_name(function.module, maker), Class):
                        return True
    return False


_PROTOCOL = frozenset(
    {"model", "optimizer", "scaler", "scheduler", "accelerator", "fabric", "engine", "criterion"}
)


def _only_computes(function: Function, result: Value) -> bool:
    """The call had no effect that a second one could have differently: its result can be used again."""
    if isinstance(result, Sequence):
        return all(isinstance(item, Tensor) for item in result.items) and _only_computes(
            function, Tensor()
        )
    if not isinstance(result, Tensor):
        return False
    return _changes_nothing(function.module, function.node)


@once
def _changes_nothing(module: Module, function: ast.AST) -> bool:
    return not relevant(module, [function]) and not any(
        isinstance(n, ast.Global | ast.Nonlocal)
        or (isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store))
        for n in walk(function)
    )


def _recorded(machine: Machine, result: Value, args: list[Value]) -> Value:
    """What a function computes where autograd does not record has no graph; what it only hands on keeps its own."""
    if machine.around.recording or not isinstance(result, Tensor) or not result.graph:
        return result
    given = any(machine.settled(value) is result for value in args)
    return result if given or result.leaf or result.grad_of else replace(result, graph=False)


def _tensor_of(args: list[Value], kwargs: dict[str, Value]) -> Tensor:
    result = Tensor(False)
    for value in [*args, *kwargs.values()]:
        if isinstance(value, Tensor) and value.grad_of is None:
            result = merged(result, value)
    return result


@once
def _generates(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    stack: list[ast.AST] = list(node.body)
    while stack:
        here = stack.pop()
        if isinstance(here, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(here, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack += children(here)
    return False


def _generator(machine: Machine, function: Function, given: list[Value], node: ast.AST) -> Value:
    """A generator: a stream of batches, its own or those of a loader it was given."""
    body = function.node
    assert not isinstance(body, ast.Lambda)
    endless = any(isinstance(n.test, ast.Constant) and n.test.value for n in below(body, ast.While))
    machine.reached.add((function.module.path, _qualname(function.module, function.node)))
    loaders = [t for v in given if (t := machine.as_kind(v, "loader")) is not None]
    if loaders and not endless:
        return loaders[0]
    counted = [v for v in map(machine.settled, given) if _is_iterator(v)]
    if len(counted) == 1 and not endless and _passes_on(body):
        return counted[0]
    loader = machine.make("loader", node, endless=endless or None)
    loader.facts["generator"] = True
    if len(loaders) == 1:
        loader.facts["sampler"] = loaders[0].facts.get("sampler")
    if "set_epoch" in called_names(function.module, body):
        machine.emit(SamplerEpoch(machine.place(node)))
    return loader


def _is_iterator(value: Value) -> bool:
    """`range(n)`, `enumerate(loader)`."""
    return isinstance(value, Thing) and value.kind == "iterator"


def _passes_on(body: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """`for item in iterable: ...; yield item`: what it is given comes out again, one by one."""
    taken = {a.arg for a in body.args.args}
    return any(
        isinstance(loop.iter, ast.Name)
        and loop.iter.id in taken
        and any(
            isinstance(given.value, ast.Name)
            and isinstance(loop.target, ast.Name)
            and given.value.id == loop.target.id
            for given in below(loop, ast.Yield)
        )
        for loop in below(body, ast.For)
    )
