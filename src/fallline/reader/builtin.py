"""Python's own functions, and the wrappers people put around loaders."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fallline.events import Kind
from fallline.reader.call import Call
from fallline.reader.evaluate import merged
from fallline.reader.machine import Machine
from fallline.reader.values import (
    NONE,
    Class,
    Const,
    Context,
    External,
    Mapping,
    Param,
    Params,
    Partial,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)

__all__ = ["call"]

_PASS_THROUGH = frozenset(
    "tqdm.tqdm tqdm.auto.tqdm tqdm.notebook.tqdm tqdm.trange rich.progress.track builtins.iter builtins.list builtins.tuple "
    "builtins.reversed builtins.sorted itertools.islice copy.deepcopy copy.copy tqdm.autonotebook.tqdm builtins.set "
    "torch_xla.distributed.parallel_loader.MpDeviceLoader".split()
)


def call(machine: Machine, name: str, call: Call) -> Value | None:
    """The value of a call of a builtin; None when it is not one we know."""
    handler = _BUILTINS.get(name)
    if handler is not None:
        return handler(machine, call)
    if name in _PASS_THROUGH or name.rpartition(".")[2] in {
        "tqdm",
        "track",
        "progress_bar",
        "islice",
    }:
        return _through(machine, call, name)
    return None


def _iterator(machine: Machine, call: Call, wrap: str, of: list[Value], **facts: object) -> Thing:
    return Thing("iterator", wrap, None, {"wrap": wrap, "of": of, **facts})


def _range(machine: Machine, call: Call) -> Value:
    inner = call.node.args[0] if call.node.args else None
    of_loader = (
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len"
    )
    return _iterator(
        machine, call, "range", [machine.settled(a) for a in call.args], of_loader=of_loader
    )


def _enumerate(machine: Machine, call: Call) -> Value:
    start = call.arg(1, "start")
    first = start.value if isinstance(start, Const) and isinstance(start.value, int) else 0
    return _iterator(machine, call, "enumerate", call.args[:1] or [Unknown()], start=first)


def _zip(machine: Machine, call: Call) -> Value:
    return _iterator(machine, call, "zip", call.args or [Unknown()])


def _cycle(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.args[0]) if call.args else Unknown()
    if isinstance(value, Sequence) or (isinstance(value, Thing) and value.kind == "iterator"):
        return _iterator(machine, call, "cycle", [value])
    return machine.make("loader", call.node, endless=True)


def _through(machine: Machine, call: Call, name: str) -> Value:
    if name.endswith("trange"):
        return _range(machine, call)
    value = machine.settled(call.arg(0, "iterable", "sequence", "obj") or Unknown())
    if isinstance(value, Thing) and value.kind == "model" and name.startswith("copy."):
        copy = machine.make(
            "model",
            call.node,
            **{k: v for k, v in value.facts.items() if k not in {"parameters", "of", "wrapped_by"}},
        )
        copy.cls, copy.attrs = value.cls, dict(value.attrs)
        copy.facts["copy"] = True
        return copy
    if isinstance(value, Sequence) and name.startswith("builtins.") and name != "builtins.iter":
        return Sequence(list(value.items), machine.iteration, value.open)
    return value


def _len(machine: Machine, call: Call) -> Value:
    from fallline.reader.loops import machine_length

    value = machine.settled(call.args[0]) if call.args else Unknown()
    if isinstance(value, Sequence) and not value.open:
        return Const(len(value.items))
    if isinstance(value, Thing) and value.kind == "loader":
        return Const(machine_length(machine, value))
    if isinstance(value, Unknown) and machine.as_kind(value, "loader") is not None:
        assert value.became is not None
        return Const(machine_length(machine, value.became))
    return Unknown(machine.text(call.node))


def _next(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.args[0]) if call.args else Unknown()
    if isinstance(value, Params):
        return Param(value.sets)
    if isinstance(value, Sequence):
        return value.items[0] if value.items else Unknown()
    if isinstance(value, Unknown) and machine.as_kind(value, "loader") is not None:
        value = machine.settled(value)
    if isinstance(value, Thing) and value.kind in {"loader", "dataset"}:
        machine.emit(Kind.BATCH, call.node, loader=value, endless=True)
        return Tensor(False)
    if isinstance(value, Thing) and value.kind == "iterator":
        return (
            Sequence([Const(0, True), Tensor(False)])
            if value.facts["wrap"] == "enumerate"
            else Tensor(False)
        )
    return Unknown("batch")


def _sum(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.args[0]) if call.args else Unknown()
    if isinstance(value, Sequence):
        tensors = [t for t in map(machine.settled, value.items) if isinstance(t, Tensor)]
        if tensors:
            result = tensors[0]
            for other in tensors[1:]:
                result = replace(merged(result, other), terms=result.terms + other.terms)
            return result
    return value if isinstance(value, Tensor) else Unknown()


def _number(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.args[0]) if call.args else Const(0)
    if isinstance(value, Tensor):
        from fallline.reader.tensors import sync

        sync(machine, value, "item", call.node)
        return Unknown()
    if isinstance(value, Const):
        try:
            convert = (
                int
                if isinstance(call.node.func, ast.Name) and call.node.func.id == "int"
                else float
            )
            return Const(convert(value.value), value.varying)
        except (TypeError, ValueError, OverflowError):
            return Unknown()
    return value


def _bool(machine: Machine, call: Call) -> Value:
    value = machine.settled(call.args[0]) if call.args else Const(False)
    return Const(bool(value.value), value.varying) if isinstance(value, Const) else value


def _print(machine: Machine, call: Call) -> Value:
    from fallline.reader.tensors import sync

    for value in map(machine.settled, call.args):
        if isinstance(value, Tensor):
            sync(machine, value, "print", call.node)
    return NONE


def _getattr(machine: Machine, call: Call) -> Value:
    from fallline.reader.evaluate import attribute

    name = call.args[1] if len(call.args) > 1 else None
    if isinstance(name, Const) and isinstance(name.value, str):
        return attribute(machine, call.args[0], name.value, call.node)
    return Unknown()


def _setattr(machine: Machine, call: Call) -> Value:
    of = machine.settled(call.args[0]) if call.args else None
    if isinstance(of, Thing) and len(call.args) > 2 and isinstance(call.args[1], Const):
        of.attrs[str(call.args[1].value)] = call.args[2]
    return NONE


def _hasattr(machine: Machine, call: Call) -> Value:
    of = machine.settled(call.args[0]) if call.args else Unknown()
    name = call.args[1] if len(call.args) > 1 else None
    if isinstance(of, Thing) and isinstance(name, Const):
        if name.value in of.attrs:
            return Const(True)
        if name.value == "module":
            return Const(of.facts.get("wrapper") is not None)
        if name.value == "no_sync":
            return Const(of.facts.get("wrapper") == "ddp")
    return Unknown(machine.text(call.node))


def _isinstance(machine: Machine, call: Call) -> Value:
    of = machine.settled(call.args[0]) if call.args else Unknown()
    wanted = machine.settled(call.args[1]) if len(call.args) > 1 else Unknown()
    if isinstance(of, Thing) and of.kind == "model" and isinstance(wanted, External):
        if wanted.name.endswith("DistributedDataParallel"):
            return Const(of.facts.get("wrapper") == "ddp")
        if wanted.name.endswith(".DataParallel"):
            return Const(of.facts.get("wrapper") == "dp")
    if isinstance(of, Thing) and of.kind == "sampler" and isinstance(wanted, External):
        return Const(wanted.name.endswith("DistributedSampler"))
    if isinstance(of, Thing) and isinstance(wanted, Class) and of.cls is not None:
        return Const(of.cls[1] is wanted.node)
    if (
        isinstance(wanted, External)
        and wanted.name in {"builtins.list", "builtins.tuple", "builtins.dict"}
        and isinstance(of, Thing | Tensor)
    ):
        return Const(False)
    return Unknown(machine.text(call.node))


def _chain(machine: Machine, call: Call) -> Value:
    from fallline.reader.builders import parameter_sets

    sets = [parameter_sets(machine, v) for v in call.args]
    if sets and all(s is not None for s in sets):
        return Params(frozenset().union(*(s for s in sets if s is not None)))
    return _iterator(machine, call, "chain", call.args or [Unknown()])


def _filter(machine: Machine, call: Call) -> Value:
    return machine.settled(call.args[-1]) if call.args else Unknown()


def _dict(machine: Machine, call: Call) -> Value:
    return Mapping(dict(call.kwargs), machine.iteration)


def _list(machine: Machine, call: Call) -> Value:
    return (
        _through(machine, call, "builtins.list") if call.args else Sequence([], machine.iteration)
    )


def _null(machine: Machine, call: Call) -> Value:
    return Context()


def _partial(machine: Machine, call: Call) -> Value:
    return Partial(call.args[0], call.args[1:], dict(call.kwargs)) if call.args else Unknown()


def _min(machine: Machine, call: Call) -> Value:
    known = [v for v in map(machine.settled, call.args) if isinstance(v, Const)]
    if len(known) == len(call.args) and len(known) > 1:
        pick = min if isinstance(call.node.func, ast.Name) and call.node.func.id == "min" else max
        try:
            return Const(pick(k.value for k in known), any(k.varying for k in known))
        except TypeError:
            return Unknown()
    return Unknown()


_BUILTINS: dict[str, Callable[[Machine, Call], Value]] = {
    "builtins.range": _range,
    "builtins.enumerate": _enumerate,
    "builtins.zip": _zip,
    "builtins.len": _len,
    "builtins.next": _next,
    "builtins.sum": _sum,
    "builtins.float": _number,
    "builtins.int": _number,
    "builtins.bool": _bool,
    "builtins.print": _print,
    "builtins.getattr": _getattr,
    "builtins.setattr": _setattr,
    "builtins.hasattr": _hasattr,
    "builtins.isinstance": _isinstance,
    "builtins.filter": _filter,
    "builtins.map": _filter,
    "builtins.dict": _dict,
    "builtins.list": _list,
    "builtins.tuple": _list,
    "builtins.set": _list,
    "builtins.min": _min,
    "builtins.max": _min,
    "itertools.cycle": _cycle,
    "itertools.chain": _chain,
    "contextlib.nullcontext": _null,
    "contextlib.suppress": _null,
    "functools.partial": _partial,
    "collections.defaultdict": _dict,
    "collections.OrderedDict": _dict,
}
