"""Calls: functions of the project in line, torch by what it does, the rest by what can be seen of it."""

from __future__ import annotations

import ast
import re
from contextlib import AbstractContextManager, ExitStack, nullcontext

from fallline.events import Kind
from fallline.reader import builders, frameworks, methods, models, objects, torch_api
from fallline.reader.call import Call
from fallline.reader.contexts import decorated
from fallline.reader.evaluate import HANDLERS, evaluate, merged
from fallline.reader.machine import Frame, Machine
from fallline.reader.relevance import acts, called_names, relevant
from fallline.reader.statements import run_block
from fallline.reader.values import (
    NONE,
    Bound,
    Class,
    External,
    Function,
    Mapping,
    Partial,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
    replace,
)
from fallline.syntax.module import children, walk

__all__ = ["call", "call_function", "call_value", "derived"]

_DEEPEST = 14
_LARGE = 12  # statements above which a function that only computes is not run
# A call that cannot be seen into and is named so may do the protocol's work.
_WORKS = re.compile(
    r"(?i)backward|step|optimi|train|accelerat|scal|update|clip|minimi|closure|engine"
)
_HARMLESS = re.compile(
    r"(?i)log|print|save|checkpoint|state|summary|format|len|meter|metric|wandb|write|adjust|learning_rate|lr$|set_lr|get_|is_|isinstance|hasattr|str|repr|type|record|scheduler|show|plot|warn|assert|copy|progress|desc|postfix|to_device|initialize$|freeze|count|info|debug|register"
)


def call(machine: Machine, node: ast.Call) -> Value:
    """The value of a call, with whatever events it makes."""
    function = node.func
    if isinstance(function, ast.Attribute):
        if (
            isinstance(function.value, ast.Call)
            and isinstance(function.value.func, ast.Name)
            and function.value.func.id == "super"
        ):
            return _super(machine, node, function.attr)
        receiver = machine.settled(evaluate(machine, function.value))
        if not isinstance(receiver, External | Class):
            return _method(machine, receiver, function.attr, node)
    target = machine.settled(evaluate(machine, function))
    return call_value(machine, target, _arguments(machine, node))


def _arguments(machine: Machine, node: ast.Call) -> Call:
    args: list[Value] = []
    star = False
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            inner = machine.settled(evaluate(machine, argument.value))
            if isinstance(inner, Sequence) and not inner.open:
                args += inner.items
            elif isinstance(inner, Tensor):
                args.append(inner)
            else:
                star = True
        else:
            args.append(evaluate(machine, argument))
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = evaluate(machine, keyword.value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, Mapping):
            kwargs.update({k: v for k, v in value.items.items() if isinstance(k, str)})
        else:
            star = True
    return Call(node, args, kwargs, star)


def call_value(machine: Machine, found: Value, call: Call) -> Value:
    """Call something."""
    target = machine.settled(found)
    if isinstance(target, Function):
        return call_function(machine, target, call.args, call.kwargs, call.node)
    if isinstance(target, Class):
        return objects.construct(machine, target, call.args, call.kwargs, call.node)
    if isinstance(target, External):
        return _external(machine, target.name, call)
    if isinstance(target, Thing):
        return models.call_thing(machine, target, call)
    if isinstance(target, Bound):
        return methods.call_method(machine, target.of, target.name, call)
    if isinstance(target, Partial):
        given = Call(
            call.node, [*target.args, *call.args], {**target.kwargs, **call.kwargs}, call.star
        )
        return call_value(machine, target.target, given)
    if isinstance(target, Unknown):
        return _unknown(machine, target, call)
    return derived(call)


def _external(machine: Machine, name: str, call: Call) -> Value:
    found = torch_api.call(machine, name, call)
    if found is None:
        found = frameworks.call(machine, name, call)
    if found is not None:
        return found
    _maybe_opaque(machine, name, call)
    return derived(call, machine)


def _method(machine: Machine, receiver: Value, name: str, node: ast.Call) -> Value:
    """`receiver.name(...)`."""
    if isinstance(receiver, Thing):
        attribute = objects.attribute(machine, receiver, name, node.func)
        if isinstance(attribute, Bound):
            return methods.call_method(machine, receiver, name, _arguments(machine, node))
        if (
            isinstance(attribute, Unknown)
            and attribute.became is None
            and methods.knows(receiver, name)
        ):
            return methods.call_method(machine, receiver, name, _arguments(machine, node))
        return call_value(machine, attribute, _arguments(machine, node))
    if isinstance(receiver, Unknown):
        call = _arguments(machine, node)
        known = methods.call_unknown(machine, receiver, name, call)
        if known is not None:
            return known
        return _unknown(machine, receiver.part(name), call)
    return methods.call_method(machine, receiver, name, _arguments(machine, node))


def _super(machine: Machine, node: ast.Call, name: str) -> Value:
    """`super().name(...)`: the base's method where it is in the project."""
    call = _arguments(machine, node)
    me = machine.frame.me
    if me is None or me.cls is None:
        return Unknown()
    current = machine.frame.function.rpartition(".")[0].rpartition(".")[2]
    module, cls = me.cls
    here: tuple[object, ast.ClassDef] | None = (module, cls)
    if current and current != cls.name and current in machine.module.classes:
        module, cls = machine.module, machine.module.classes[current]
        here = (module, cls)
    if here is not None:
        for base_module, base in objects.base_classes(module, cls):
            method = objects.find_method(base_module, base, name)
            if method is not None:
                return call_function(
                    machine, Function(method[1], method[0], None, me), call.args, call.kwargs, node
                )
    if name == "__init__" and me.kind == "optimizer" and call.args:
        me.facts["parameters"] = builders.parameter_sets(machine, call.args[0])
        return NONE
    if name in {"__init__", "__setattr__"}:
        return NONE
    return (
        methods.call_method(machine, me, name, call)
        if methods.knows(me, name)
        else frameworks.super_call(machine, me, name, call)
    )


def call_function(
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
        return models.shaped(machine.results[key], _tensor_of(args, kwargs))
    if not isinstance(body, ast.Lambda) and _generates(body):
        return _generator(machine, function, [*args, *kwargs.values()], node)
    if not always and _passed_over(machine, function, [*args, *kwargs.values()]):
        return models.shaped(Unknown(), replace(_tensor_of(args, kwargs), divided=None))
    name: str | None = getattr(body, "_qualname", None)
    if name is None:
        name = body._qualname = function.module.qualname(body)  # type: ignore[union-attr]
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
                return evaluate(machine, body.body)
            machine.returned = None
            run_block(machine, body.body)
            result, machine.returned = machine.returned, None
            result = result if result is not None else NONE
            if len(machine.events) == begun and _only_computes(function, result):
                machine.results[key] = result
            return result
    finally:
        machine.calling.pop()
        machine.callers = outer


def _surroundings(machine: Machine, function: Function) -> AbstractContextManager[object]:
    """What the decorators of a function put around it."""
    if isinstance(function.node, ast.Lambda) or not function.node.decorator_list:
        return _NOTHING
    stack = ExitStack()
    decorated(machine, function, stack)
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
        frame.names[name] = value
        frame.fresh[name] = machine.iteration
    if spec.vararg is not None:
        frame.names[spec.vararg.arg] = Sequence(given[len(names) :], machine.iteration)
    keyword_only = [a.arg for a in spec.kwonlyargs]
    rest: dict[object, Value] = {}
    for name, value in kwargs.items():
        if name in names or name in keyword_only:
            frame.names[name] = value
        else:
            rest[name] = value
    if spec.kwarg is not None:
        frame.names[spec.kwarg.arg] = Mapping(rest, machine.iteration)
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
            frame.names[name] = evaluate(machine, default)


def _passed_over(machine: Machine, function: Function, given: list[Value]) -> bool:
    """A long function with no part in the protocol, and nothing of it handed over."""
    node = function.node
    large = getattr(node, "_large", None)
    if large is None:
        large = (
            sum(isinstance(n, ast.stmt) for n in walk(node)) > _LARGE
            and called_names(node).isdisjoint(_MAKES)
            and not acts(function.module, [node])
        )
        node._large = large  # type: ignore[union-attr]
    if not large:
        return False
    me = function.me
    held = [*given, *(me.attrs.values() if me is not None and me.kind == "object" else ())]
    return not any(
        isinstance(value, Function) or (isinstance(value, Thing) and value.kind in _PROTOCOL)
        for value in map(machine.settled, held)
    )


# What a long function may make that its caller's loop goes over: without it nobody knows the sampler.
_MAKES = frozenset({"DataLoader", "DistributedSampler"})
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
    node = function.node
    known = getattr(node, "_only_computes", None)
    if known is None:
        known = not relevant(function.module, [node]) and not any(
            isinstance(n, ast.Global | ast.Nonlocal)
            or (isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store))
            for n in walk(node)
        )
        node._only_computes = known  # type: ignore[union-attr]
    return bool(known)


def _tensor_of(args: list[Value], kwargs: dict[str, Value]) -> Tensor:
    result = Tensor(False)
    for value in [*args, *kwargs.values()]:
        if isinstance(value, Tensor) and value.grad_of is None:
            result = merged(result, value)
    return result


def _generates(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    known = getattr(node, "_generates", None)
    if known is None:
        known = False
        stack: list[ast.AST] = list(node.body)
        while stack:
            here = stack.pop()
            if isinstance(here, ast.Yield | ast.YieldFrom):
                known = True
                break
            if not isinstance(
                here, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
            ):
                stack += children(here)
        node._generates = known  # type: ignore[union-attr]
    return bool(known)


def _generator(machine: Machine, function: Function, given: list[Value], node: ast.AST) -> Value:
    """A generator: a context manager, or a stream of batches, its own or those of a loader it was given."""
    body = function.node
    assert not isinstance(body, ast.Lambda)
    if any("contextmanager" in ast.unparse(d) for d in body.decorator_list):
        return function
    endless = any(
        isinstance(n, ast.While) and isinstance(n.test, ast.Constant) and n.test.value
        for n in ast.walk(body)
    )
    machine.reached.add((function.module.path, function.module.qualname(body)))
    loaders = [t for v in given if (t := machine.as_kind(v, "loader")) is not None]
    if loaders and not endless:
        return loaders[0]
    loader = machine.make("loader", node, endless=endless or None)
    loader.facts["generator"] = True
    return loader


def _unknown(machine: Machine, target: Unknown, call: Call) -> Value:
    """Something we cannot see is called: by its name perhaps a model or a loss, else opaque if it was given the protocol."""
    kind = kind_by_name(target.hint)
    tensors = [v for v in call.values if isinstance(machine.settled(v), Tensor)]
    if kind == "model" and target.hint.rpartition(".")[2][:4].lower() not in {
        "make",
        "get_",
        "buil",
        "load",
        "crea",
    }:
        return models.call_thing(machine, machine.become(target, "model"), call)
    if kind == "criterion" and tensors:
        return models.call_thing(machine, machine.become(target, "criterion"), call)
    _maybe_opaque(machine, target.hint, call)
    return derived(call, machine)


def _maybe_opaque(machine: Machine, name: str, call: Call) -> None:
    last = name.rpartition(".")[2]
    values = [machine.settled(v) for v in call.values]
    given = [v for v in values if isinstance(v, Thing) and v.kind in {"optimizer", "scaler"}]
    closures = [v for v in values if isinstance(v, Function)]
    losses = [v for v in values if isinstance(v, Tensor) and v.graph and v.forwards]
    if (
        (given and not _HARMLESS.search(last))
        or (losses and _WORKS.search(last))
        or (closures and _WORKS.search(last))
    ):
        machine.emit(Kind.OPAQUE, call.node, what=last)


def derived(call: Call, machine: Machine | None = None) -> Value:
    """The result of a call we know nothing about: a tensor if tensors went in."""
    result: Tensor | None = None
    for value in call.values:
        if isinstance(value, Tensor) and value.grad_of is None:
            result = value if result is None else merged(result, value)
    if result is None:
        unknown = Unknown()
        if machine is not None:
            unknown.made_from = [
                t for t in map(machine.settled, call.values) if isinstance(t, Thing)
            ]
        return unknown
    # how it reduces and scales, and whether it has a graph, is not known any more
    return replace(
        result,
        graph=None if result.graph else result.graph,
        reduction=None,
        divided=None if not result.divided else True,
    )


HANDLERS[ast.Call] = call
