"""Arguments and instances for code whose caller is not in view."""

from __future__ import annotations

import ast
import re

from fallline.api.values import Class, Mapping, Thing, Unknown, Value, kind_by_name
from fallline.reader.machine import Machine
from fallline.reader.objects import construct
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["given", "instance", "pair_up"]


def given(machine: Machine, node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Value]:
    """Arguments for a function whose caller is not known: by default, by name, or unknown."""
    spec = node.args
    found: dict[str, Value] = {}
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
            value = machine.evaluate(default)
            if isinstance(value, Unknown) and not value.hint:
                value.hint = name
        found[name] = value
    if spec.kwarg is not None:
        found[f"**{spec.kwarg.arg}"] = Mapping({}, open=True)
    pair_up(machine, found)
    return found


def pair_up(machine: Machine, given: dict[str, Value]) -> None:
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


def instance(machine: Machine, module: Module, cls: ast.ClassDef) -> Thing:
    init = find_method(module, cls, "__init__")
    args: list[Value] = []
    kwargs: dict[str, Value] = {}
    if init is not None:
        values = given(machine, init[1])
        args = [values[a.arg] for a in [*init[1].args.posonlyargs, *init[1].args.args][1:]]
        kwargs = {a.arg: values[a.arg] for a in init[1].args.kwonlyargs}
        kwargs |= {name: value for name, value in values.items() if name.startswith("**")}
    made = construct(machine, Class(cls, module), args, kwargs, cls)
    assert isinstance(made, Thing)
    return made
