"""Instances of the project's classes, and training objects: construction and attributes."""

from __future__ import annotations

import ast

from fallline import api
from fallline.api.gradients import parameter_sets
from fallline.api.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
    record,
    truth_of,
)
from fallline.flow.modes import class_has_mode
from fallline.flow.modules import learns
from fallline.flow.samplers import is_distributed_sampler
from fallline.reader.machine import Machine
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, methods_of, walk
from fallline.syntax.once import once

__all__ = ["class_attribute", "construct", "set_elsewhere", "thing_attribute"]


# `agent.critic.optimizer`: who keeps these in a model keeps them as its attributes
_HELD = frozenset({"optimizer", "scheduler", "scaler"})


def thing_attribute(machine: Machine, thing: Thing, name: str, node: ast.AST) -> Value:
    """`thing.name`."""
    found = thing.attrs.get(name)
    if found is not None:
        return found
    if thing.cls is not None:
        value = _from_class(machine, thing, name, node)
        if value is not None:
            return value
        inner = _passed_on(machine, thing)
        if inner is not None:
            return thing_attribute(machine, inner, name, node)
    known = api.attribute(thing.kind, name)
    special = known(machine, thing) if known is not None else None
    if special is not None:
        return special
    if api.inherited(thing.kind, name) is not None:
        return Bound(thing, name)
    if thing.kind == "object" or (
        thing.kind == "model"
        and kind_by_name(name) is not None
        and (thing.cls is not None or kind_by_name(name) in _HELD)
    ):
        # set somewhere we cannot see (a base class, a decorator): unknown, but the same each time
        value = Unknown(f"self.{name}" if thing is machine.frame.me else name)
        thing.attrs[name] = value
        return value
    return Bound(thing, name)


def set_elsewhere(machine: Machine, empty: Const, node: ast.AST) -> Unknown | None:
    """`self.optimizer.step` after `self.optimizer = None`: it would fail, so somebody has set it by now, who is not seen."""
    match node:
        case ast.Attribute(ast.Attribute(of, held) as written):
            owner = machine.settled(machine.evaluate(of))
            if isinstance(owner, Thing) and owner.attrs.get(held) is empty:
                found = owner.attrs[held] = Unknown(machine.text(written))
                return found
    return None


def _from_class(machine: Machine, thing: Thing, name: str, node: ast.AST) -> Value | None:
    assert thing.cls is not None
    module, cls = thing.cls
    method = find_method(module, cls, name)
    if method is not None:
        home, function = method
        value = Function(function, home, None, thing)
        how = _decoration(home, function)
        if how == "property":
            return machine.run_function(value, [], {}, node)
        if how == "static":
            value.me = None
        return value
    assigned = _assigned(module, cls).get(name)
    return _class_level(machine, module, assigned) if assigned is not None else None


def _passed_on(machine: Machine, thing: Thing) -> Thing | None:
    """The optimizer in a wrapper that passes on what it does not have: `return getattr(self.optimizer, name)` in `__getattr__`."""
    assert thing.cls is not None
    method = find_method(*thing.cls, "__getattr__")
    for node in below(method[1], ast.Return) if method is not None else ():
        match node.value:
            case ast.Call(ast.Name("getattr"), [ast.Attribute(ast.Name("self"), held), ast.Name()]):
                inner = thing.attrs.get(held)
                found = machine.settled(inner) if inner is not None else None
                kind = kind_by_name(held)
                if isinstance(found, Unknown) and kind is not None:
                    return machine.become(found, kind)
                if isinstance(found, Thing) and found is not thing:
                    return found
    return None


@once
def _decoration(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Whether a method is a property or static. Every attribute asks."""
    names = {d.id for d in function.decorator_list if isinstance(d, ast.Name)}
    if names & {"property", "cached_property"}:
        return "property"
    return "static" if "staticmethod" in names else ""


@once
def _assigned(module: Module, cls: ast.ClassDef) -> dict[str, ast.expr]:
    """What the body of a class assigns, the first of each name."""
    known: dict[str, ast.expr] = {}
    for item in cls.body:
        match item:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=only, value=ast.expr() as value):
                targets = [only]
            case _:
                continue
        for target in targets:
            if isinstance(target, ast.Name):
                known.setdefault(target.id, value)
    return known


def _class_level(machine: Machine, module: Module, value: ast.expr) -> Value:
    with machine.entered(machine.module_frame(module)):
        return machine.evaluate(value)


@once
def _scales_nothing(module: Module, cls: ast.ClassDef) -> bool:
    """Stands in for a GradScaler where none is wanted: `def scale(self, loss): return loss`."""
    methods = {m.name: m for m in methods_of(cls)}
    if not {"scale", "step", "update"} <= methods.keys():
        return False
    scale = methods["scale"]
    match scale.body[-1], scale.args.args:
        case ast.Return(ast.Name(given)), [_, ast.arg(arg=taken)]:
            return given == taken and not any(isinstance(s, ast.Assign | ast.AugAssign) for s in scale.body)  # fmt: skip
    return False


def construct(
    machine: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """An instance of a class of the project, its `__init__` run."""
    if is_distributed_sampler(cls.module, cls.node):
        return _sampler(machine, cls, args, kwargs, node)
    if _scales_nothing(cls.module, cls.node):
        return machine.make("scaler", node, enabled=False)
    bases = cls.module.bases(cls.node)
    kind = "object"
    if cls.module.is_module_class(cls.node):
        kind = "model"
    elif any(b.startswith("torch.optim.") and "lr_scheduler" not in b for b in bases):
        kind = "optimizer"
    elif any("lr_scheduler" in b for b in bases):
        kind = "scheduler"
    elif any(b.endswith(("DataLoader",)) for b in bases):
        kind = "loader"
    elif any(b.startswith("torch.utils.data.") and b.endswith("Dataset") for b in bases):
        kind = "dataset"
    if kind == "model" and (
        cls.node.name.endswith(("Loss", "Criterion")) or cls.node.name.lower().endswith("loss")
    ):
        kind = "criterion"
    thing = machine.make(kind, node)
    thing.cls = (cls.module, cls.node)
    same = _recipe(machine, cls, args, kwargs, node) if kind == "model" else None
    if same in machine.parts:
        # the next block of a model: built by the line that built the one before, of the same things
        thing.facts |= {**machine.parts[same].facts, "parameters": thing.facts["parameters"]}
        thing.attrs = dict(machine.parts[same].attrs)
        return thing
    compared = machine.counts.compared
    begun = len(machine.events)
    thing.facts["type"] = cls.node.name
    if kind == "model":
        thing.facts.update(_layers(cls.module, cls.node))
        if not _may_learn(cls.module, cls.node):
            thing.facts["frozen"] = (
                True  # a loss, a transform: its result has the graph of what goes in
            )
    if kind == "optimizer":
        thing.facts["parameters"] = parameter_sets(machine, args[0]) if args else None
    inside = machine.around.inside_model
    machine.around.inside_model += kind in {
        "model",
        "criterion",
        "dataset",
    } and "LightningModule" not in str(bases)
    try:
        method = find_method(cls.module, cls.node, "__init__")
        if method is not None:
            machine.run_function(Function(method[1], method[0], None, thing), args, kwargs, node)
        elif any(isinstance(machine.settled(v), Tensor) for v in (*args, *kwargs.values())):
            names = [
                f.target.id
                for f in cls.node.body
                if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
            ]
            thing.attrs = record(names, args, kwargs)
            thing.facts["record"] = True
    finally:
        machine.around.inside_model = inside
    if same is not None and len(machine.events) == begun:
        kept = cls.module.notes("compares numbers")
        if machine.counts.compared > compared and cls.node not in kept:
            kept[cls.node] = True
            same = _recipe(machine, cls, args, kwargs, node)
        machine.parts[same] = thing
    return thing


def _sampler(
    machine: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Thing:
    """A project's own copy of torch's DistributedSampler is treated as that one."""
    method = find_method(cls.module, cls.node, "__init__")
    spec = method[1].args if method is not None else ast.arguments([], [], None, [], [], None, [])
    defaults = dict(zip(reversed(spec.args), reversed(spec.defaults), strict=False))
    usual = {a.arg: cls.module.constant(value) for a, value in defaults.items()}
    given = {**dict(zip([a.arg for a in spec.args[1:]], args, strict=False)), **kwargs}
    value = machine.settled(given.get("shuffle", Const(usual.get("shuffle", True))))
    return machine.make("sampler", node, type="DistributedSampler", shuffle=truth_of(value))


def _recipe(
    machine: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> tuple[object, ...] | None:
    """Who builds this part of a model, and of what; sizes are told apart where building it compares numbers."""
    if not machine.around.inside_model:
        return None
    exact = cls.node in cls.module.notes("compares numbers")
    given = [*args, *kwargs.values()]
    return (id(cls.node), id(node), *(_look(value, exact) for value in given))


def _look(value: Value, exact: bool) -> object:
    """What an argument is, as far as the shape of a model can depend on it."""
    if isinstance(value, Const):
        sized = isinstance(value.value, int | float) and not isinstance(value.value, bool)
        return "number" if sized and not exact else repr(value.value)
    if isinstance(value, Class | Function):
        return id(value.node)
    if isinstance(value, External):
        return value.name
    if isinstance(value, Unknown):
        return value.hint
    if isinstance(value, Thing):
        return (value.kind, value.facts.get("type"))
    return value.__class__


@once
def _may_learn(module: Module, cls: ast.ClassDef) -> bool:
    """Whether a model class may hold weights: it makes some, calls what it was given, or derives from another class."""
    plain = set(module.bases(cls)) == {"torch.nn.Module"}
    return not plain or _calls_a_part(cls) or learns(module, cls)


def _calls_a_part(cls: ast.ClassDef) -> bool:
    """`self.body(x)`, where `body` is not a method; add_module and its kin."""
    methods = {m.name for m in methods_of(cls)}
    for node in walk(cls):
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), name)) if name not in methods:
                return True
    return False


@once
def _layers(module: Module, cls: ast.ClassDef) -> dict[str, bool | None]:
    """What kinds of layers a model class names, read off its text."""
    known: dict[str, bool | None] = {}
    for inner in below(cls, ast.Call):
        if "BatchNorm" in (module.resolve(inner.func) or "").rpartition(".")[2]:
            known["batchnorm"] = True
    known["has_mode"] = class_has_mode(module, cls)
    return known


def class_attribute(machine: Machine, cls: Class, name: str) -> Value:
    method = find_method(cls.module, cls.node, name)
    return Function(method[1], method[0]) if method is not None else Bound(cls, name)
