"""Arguments and instances for code whose caller is not in view."""

from __future__ import annotations

import ast
import re

from fallline.api.values import Class, Mapping, Thing, Unknown, Value, kind_by_name, of_kind
from fallline.reader.machine import Machine
from fallline.reader.objects import construct
from fallline.syntax import Module
from fallline.syntax.classes import find_method

__all__ = ["given", "instance", "pair_up"]

_HANDED_OVER = frozenset({"optimizer", "loader", "criterion"})


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
        kind = kind_by_name(name)
        value: Value
        match default:
            case None:
                value = unknown = Unknown(name)
                if kind == "model" or (kind in _HANDED_OVER and name != "data"):
                    machine.become(unknown, kind)
            case ast.Constant():  # still the caller's to choose
                value = Unknown(name)
            case _:
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
    models = {n: t for n, value in known.items() for t in of_kind([value], "model")}
    optimizers = {n: t for n, value in known.items() for t in of_kind([value], "optimizer")}
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
