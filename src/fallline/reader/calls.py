"""Calls: functions of the project in line, torch by what it does, the rest by what can be seen of it."""

from __future__ import annotations

import ast
import re

from fallline import api
from fallline.api.call import Call
from fallline.api.gradients import parameter_sets
from fallline.api.timm import update_by_scaler
from fallline.api.torch.make import set_up_loader
from fallline.api.torch.model import called, through
from fallline.api.values import (
    NONE,
    Bound,
    Class,
    Const,
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
)
from fallline.events import Deed, Opaque, Step
from fallline.flow.recording import turns_off
from fallline.reader.machine import Machine
from fallline.reader.methods import call_method, call_unknown
from fallline.reader.objects import construct, set_elsewhere, thing_attribute
from fallline.reader.opaque import computed, derived, holds_protocol, maybe_opaque
from fallline.reader.relevance import runs_parts
from fallline.syntax import Module
from fallline.syntax.classes import base_classes, find_method
from fallline.syntax.nodes import methods_called

__all__ = ["call", "call_value"]


def call(machine: Machine, node: ast.Call) -> Value:
    """The value of a call, with whatever events it makes."""
    match node.func:
        case ast.Attribute(ast.Call(func=ast.Name("super")), name):
            return _super(machine, node, name)
        case ast.Attribute(of, name):
            receiver = machine.settled(machine.evaluate(of))
            if not isinstance(receiver, External | Class):
                return _method(machine, receiver, name, node)
    target = machine.settled(machine.evaluate(node.func))
    return machine.call(target, _arguments(machine, node))


def _arguments(machine: Machine, node: ast.Call) -> Call:
    args: list[Value] = []
    star = False
    machine.bounds.spend(len(node.args) // 16)
    for argument in node.args:
        if not isinstance(argument, ast.Starred):
            args.append(machine.evaluate(argument))
            continue
        match machine.settled(machine.evaluate(argument.value)):
            case Sequence(items, open=False):
                args += items
            case Tensor() as tensor:
                args.append(tensor)
            case _:
                star = True
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        value = machine.evaluate(keyword.value)
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
    match target:
        case Function():
            return machine.run_function(target, call.args, call.kwargs, call.node)
        case Class():
            return construct(machine, target, call.args, call.kwargs, call.node)
        case External(name):
            return _external(machine, name, call)
        case Thing(kind="scaler", cls=None) if len(call.values) > 1:
            return update_by_scaler(machine, target, call)
        case Thing():
            return called(machine, target, call)
        case Bound(of, name):
            return call_method(machine, of, name, call)
        case Partial(inner, args, kwargs):
            given = Call(call.node, [*args, *call.args], {**kwargs, **call.kwargs}, call.star)
            return machine.call(inner, given)
        case Unknown():
            return _unknown(machine, target, call)
    return derived(call)


def _external(machine: Machine, name: str, call: Call) -> Value:
    function = api.function(name)
    if function is not None:
        return function(machine, call)
    for family in api.families(name):
        found = family(machine, call, name)
        if found is not None:
            return found
    maybe_opaque(machine, name, call)
    return computed(machine, name, call)


def _method(machine: Machine, receiver: Value, name: str, node: ast.Call) -> Value:
    """`receiver.name(...)`."""
    if isinstance(receiver, Const) and receiver.value is None:
        receiver = set_elsewhere(machine, receiver, node.func) or receiver
    match receiver:
        case Thing():
            return _method_of_thing(machine, receiver, name, node)
        case Unknown():
            call = _arguments(machine, node)
            known = call_unknown(machine, receiver, name, call)
            if known is None:
                return _unknown(machine, receiver.part(name), call)
            _was_a_loss(machine, receiver, node)
            return known
        case Const(None) if name in _UPDATES:
            # None cannot step: somebody who is not in view puts an optimizer there
            machine.emit(
                Opaque(machine.place(node), what=machine.text(node.func), could=_AROUND_A_STEP)
            )
    return call_method(machine, receiver, name, _arguments(machine, node))


def _method_of_thing(machine: Machine, receiver: Thing, name: str, node: ast.Call) -> Value:
    if name == "step" and _is_an_update(receiver):
        return call_method(machine, receiver, name, _arguments(machine, node))
    attribute = thing_attribute(machine, receiver, name, node.func)
    match attribute:
        case Bound(of):
            return call_method(machine, of, name, _arguments(machine, node))
        case Unknown(became=None) if api.method(receiver.kind, name) is not None:
            return call_method(machine, receiver, name, _arguments(machine, node))
        case Function(node=method, module=home) if _is_a_pass(machine, receiver, home, method):
            return through(machine, receiver, name, _arguments(machine, node))
    begun = len(machine.events)
    result = machine.call(attribute, _arguments(machine, node))
    _perhaps_stepped(machine, receiver, name, node, begun)
    return result


def _is_a_pass(machine: Machine, model: Thing, home: Module, method: ast.AST) -> bool:
    """`model.encode(x)`, called from outside: it runs the model's parts, and neither trains nor sets a mode."""
    if model.kind != "model" or model is machine.frame.me or model.cls is None:
        return False
    if any("Lightning" in base for base in model.cls[0].bases(model.cls[1])):
        return False
    if not isinstance(method, ast.FunctionDef) or turns_off(method):
        return False  # what it does by itself, without recording, is read as it stands
    return runs_parts(home, method) and not any(turns_off(s) for s in method.body)


def _was_a_loss(machine: Machine, receiver: Unknown, node: ast.Call) -> None:
    """After `loss.backward()` it is known what `loss` was: a tensor with a graph, or this would raise."""
    match node.func:
        case ast.Attribute(ast.Name(held), "backward") if machine.events and not machine.aside:
            if receiver.became is None and not node.args:
                seen = frozenset({len(machine.events) - 1})
                machine.assign(held, Tensor(True, forwards=seen, divided=None))


def _perhaps_stepped(
    machine: Machine, receiver: Thing, name: str, node: ast.Call, begun: int
) -> None:
    """`step` of an object of the project that is called like an optimizer, and none of those it holds was seen to step."""
    if name != "step" or receiver.kind != "object":
        return
    stepped = any(isinstance(e, Step | Opaque) for e in machine.events[begun:])
    text = machine.text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if kind_by_name(text) == "optimizer" and not stepped:
        machine.emit(Opaque(machine.place(node), what=f"{text}.step", could=_AROUND_A_STEP))


_UPDATES = frozenset({"step", "zero_grad", "unscale_"})
_AROUND_A_STEP: frozenset[Deed] = frozenset({"clear", "step"})


def _is_an_update(thing: Thing) -> bool:
    """`step` of the project's own optimizer, which computes the update itself: not one around another optimizer (SAM)."""
    if thing.kind != "optimizer" or thing.cls is None:
        return False
    method = find_method(*thing.cls, "step")
    return method is not None and _AROUND_ANOTHER.isdisjoint(methods_called(method[1]))


_AROUND_ANOTHER = frozenset({"step", "zero_grad", "backward", "unscale_"})


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
        for base_module, base in base_classes(module, cls):
            method = find_method(base_module, base, name)
            if method is not None:
                return machine.run_function(
                    Function(method[1], method[0], None, me), call.args, call.kwargs, node
                )
    if name == "__init__" and me.kind == "optimizer" and call.args:
        me.facts["parameters"] = parameter_sets(machine, call.args[0])
        return NONE
    if name == "__init__" and me.kind == "loader":
        set_up_loader(machine, me, call)
    if name in {"__init__", "__setattr__"}:
        return NONE
    if api.method(me.kind, name) is not None:
        return call_method(machine, me, name, call)
    theirs = api.overridden(name)
    if theirs is not None:
        return theirs(machine, me, call)
    if name in {"training_step", "train", "optimizer_step", "step", "backward"}:
        if holds_protocol(machine, me):
            machine.emit(Opaque(machine.place(call.node), what=f"super().{name}"))
        else:
            maybe_opaque(machine, name, call)
    return Unknown()


# By its name such a call makes a model: `init_model(config)`, `self.spec.construct_model()`. It runs none.
_MAKES = re.compile(
    r"(?i)_?(make|get|build|load|create|init|construct|set_?up|prepare|define|instantiate|new|choose|select|configure|wrap|restore"
    r"|import|fetch|from)(_|[a-z]*model|ial)"
)


def _unknown(machine: Machine, target: Unknown, call: Call) -> Value:
    """Something we cannot see is called: by its name perhaps a model or a loss, else opaque if it was given the protocol."""
    kind = kind_by_name(target.hint)
    tensors = [v for v in call.values if isinstance(machine.settled(v), Tensor)]
    if kind == "model" and not _MAKES.match(target.hint.rpartition(".")[2]):
        return called(machine, machine.become(target, "model"), call)
    if kind == "scaler" and tensors and any(machine.as_kind(v, "optimizer") for v in call.values):
        return update_by_scaler(machine, machine.become(target, "scaler"), call)
    if kind == "criterion" and tensors:
        return called(machine, machine.become(target, "criterion"), call)
    maybe_opaque(machine, target.hint, call)
    return computed(machine, target.hint, call)
