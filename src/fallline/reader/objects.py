"""Training objects and instances of the project's classes: attributes, methods, construction."""

from __future__ import annotations

import ast

from fallline.flow.modes import class_has_mode
from fallline.reader.evaluate import ATTRIBUTES
from fallline.reader.machine import Machine
from fallline.reader.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Mapping,
    Params,
    Sequence,
    Thing,
    Unknown,
    Value,
    kind_by_name,
)
from fallline.syntax import Module
from fallline.syntax.module import walk

__all__ = ["attribute", "base_classes", "construct", "find_method", "scan_model"]

_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})


Method = tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]


def find_method(module: Module, cls: ast.ClassDef, name: str) -> Method | None:
    """A method of a class or of its bases in the project; kept on the class."""
    known: dict[str, Method | None] | None = getattr(cls, "_methods", None)
    if known is None:
        known = cls._methods = {}  # type: ignore[attr-defined]
    if name not in known:
        known[name] = _search_method(module, cls, name)
    return known[name]


def _search_method(module: Module, cls: ast.ClassDef, name: str) -> Method | None:
    seen: set[int] = set()
    queue: list[tuple[Module, ast.ClassDef]] = [(module, cls)]
    while queue:
        home, here = queue.pop(0)
        if id(here) in seen:
            continue
        seen.add(id(here))
        for item in here.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
                return home, item
        queue += base_classes(home, here)
    return None


def base_classes(home: Module, cls: ast.ClassDef) -> list[tuple[Module, ast.ClassDef]]:
    """The bases of a class that are classes of the project."""
    found: list[tuple[Module, ast.ClassDef]] = []
    for base in cls.bases:
        target = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(target, ast.Name) and target.id in home.classes:
            found.append((home, home.classes[target.id]))
            continue
        name = home.resolve(target)
        there = (
            home.project.find(name, home) if name is not None and home.project is not None else None
        )
        if there is not None and isinstance(there[1], ast.ClassDef):
            found.append((there[0], there[1]))
    return found


def attribute(machine: Machine, thing: Thing, name: str, node: ast.AST) -> Value:
    """`thing.name`."""
    found = thing.attrs.get(name)
    if found is not None:
        return found
    if thing.cls is not None:
        value = _from_class(machine, thing, name, node)
        if value is not None:
            return value
    from fallline.reader import frameworks

    special = _special(machine, thing, name)
    if special is None:
        special = frameworks.attribute(machine, thing, name)
    if special is not None:
        return special
    if thing.kind == "model" and name in frameworks.LIGHTNING:
        return Bound(thing, name)
    if thing.kind == "object" or (
        thing.kind == "model" and kind_by_name(name) is not None and thing.cls is not None
    ):
        # set somewhere we cannot see (a base class, a decorator): unknown, but the same each time
        value = Unknown(f"self.{name}" if thing is machine.frame.me else name)
        thing.attrs[name] = value
        return value
    return Bound(thing, name)


def _from_class(machine: Machine, thing: Thing, name: str, node: ast.AST) -> Value | None:
    assert thing.cls is not None
    module, cls = thing.cls
    method = find_method(module, cls, name)
    if method is not None:
        home, function = method
        value = Function(function, home, None, thing)
        how = _decoration(function)
        if how == "property":
            from fallline.reader.calls import call_function

            return call_function(machine, value, [], {}, node)
        if how == "static":
            value.me = None
        return value
    assigned = _assigned(cls).get(name)
    return _class_level(machine, module, assigned) if assigned is not None else None


def _decoration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Whether a method is a property or static; kept on the node, since every attribute asks."""
    known: str | None = getattr(function, "_decoration", None)
    if known is None:
        names = {d.id for d in function.decorator_list if isinstance(d, ast.Name)}
        known = "static" if "staticmethod" in names else ""
        known = "property" if names & {"property", "cached_property"} else known
        function._decoration = known  # type: ignore[union-attr]
    return known


def _assigned(cls: ast.ClassDef) -> dict[str, ast.expr]:
    """What the body of a class assigns, the first of each name; kept on the class."""
    known: dict[str, ast.expr] | None = getattr(cls, "_assigned", None)
    if known is None:
        known = cls._assigned = {}  # type: ignore[attr-defined]
        for item in cls.body:
            if isinstance(item, ast.Assign):
                for target in item.targets:
                    if isinstance(target, ast.Name):
                        known.setdefault(target.id, item.value)
            elif (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and item.value is not None
            ):
                known.setdefault(item.target.id, item.value)
    return known


def _class_level(machine: Machine, module: Module, value: ast.expr) -> Value:
    from fallline.reader.evaluate import evaluate

    with machine.entered(machine.module_frame(module)):
        return evaluate(machine, value)


def _special(machine: Machine, thing: Thing, name: str) -> Value | None:
    """Attributes of torch's own objects."""
    if thing.kind == "model":
        if name == "module":
            inner = thing.attrs.get("module")
            if thing.facts.get("wrapper") in {"ddp", "fsdp1", "dp"} and inner is None:
                return _bypass(machine, thing)
            return inner
        if name == "training":
            training = thing.facts.get("training")
            return Const(training) if training is not None else Unknown(f"{thing.id}.training")
    if thing.kind == "optimizer":
        if name == "param_groups":
            group = Mapping({"params": Params(thing.sets), "lr": Unknown("lr")})
            return Sequence([group])
        if name in {"optimizer", "optim", "base_optimizer", "_optimizer"}:
            return thing
        if name == "state":
            return Unknown("state")
    if thing.kind == "loader":
        if name in {"sampler", "batch_sampler"}:
            sampler = thing.attrs.get("sampler")
            return sampler if sampler is not None else Unknown(f"{thing.id}.sampler")
        if name == "dataset":
            return Unknown("dataset")
    if thing.kind == "sampler" and name == "sampler":
        return thing  # loader.batch_sampler.sampler
    return None


def _bypass(machine: Machine, model: Thing) -> Thing:
    """`ddp_model.module`: the same parameters, past the wrapper."""
    inner = Thing("model", model.id + ".module", model.at, dict(model.facts), {}, model.cls)
    inner.facts["bypasses"] = model.facts.get("wrapper")
    inner.facts["wrapper"] = None
    inner.facts["of"] = model.id
    model.attrs["module"] = inner
    return inner


def construct(
    machine: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> Value:
    """An instance of a class of the project, its `__init__` run."""
    from fallline.reader.calls import call_function

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
    compared = machine.compared
    begun = len(machine.events)
    thing.facts["type"] = cls.node.name
    if kind == "model":
        scan_model(thing)
    if kind == "optimizer":
        thing.facts["parameters"] = _sets_of(machine, args[0]) if args else None
    inside = machine.inside_model
    machine.inside_model += kind in {
        "model",
        "criterion",
        "dataset",
    } and "LightningModule" not in str(bases)
    try:
        method = find_method(cls.module, cls.node, "__init__")
        if method is not None:
            call_function(machine, Function(method[1], method[0], None, thing), args, kwargs, node)
    finally:
        machine.inside_model = inside
    if same is not None and len(machine.events) == begun:
        if machine.compared > compared and not getattr(cls.node, "_compares", False):
            cls.node._compares = True  # type: ignore[attr-defined]
            same = _recipe(machine, cls, args, kwargs, node)
        machine.parts[same] = thing
    return thing


def _recipe(
    machine: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value], node: ast.AST
) -> tuple[object, ...] | None:
    """Who builds this part of a model, and of what; sizes are told apart where building it compares numbers."""
    if not machine.inside_model:
        return None
    exact = getattr(cls.node, "_compares", False)
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


def _sets_of(machine: Machine, value: Value) -> frozenset[str] | None:
    from fallline.reader.builders import parameter_sets

    return parameter_sets(machine, value)


def scan_model(thing: Thing) -> None:
    """What kinds of layers a model class names, read off its text."""
    assert thing.cls is not None
    module, cls = thing.cls
    known = getattr(cls, "_layers", None)
    if known is None:
        known = {}
        for inner in walk(cls):
            if isinstance(inner, ast.Call):
                name = (module.resolve(inner.func) or "").rpartition(".")[2]
                if "BatchNorm" in name:
                    known["batchnorm"] = True
                elif name in _RECURRENT:
                    known["recurrent"] = True
                elif name.startswith("Transformer") or name == "MultiheadAttention":
                    known["transformer"] = True
                elif name.startswith("Dropout"):
                    known["dropout"] = True
        known["has_mode"] = class_has_mode(module, cls)
        cls._layers = known  # type: ignore[attr-defined]
    thing.facts.update(known)


def _class_attribute(machine: Machine, cls: Class, name: str, node: ast.AST) -> Value:
    method = find_method(cls.module, cls.node, name)
    return Function(method[1], method[0]) if method is not None else Bound(cls, name)


ATTRIBUTES[Thing] = attribute
ATTRIBUTES[Class] = _class_attribute
