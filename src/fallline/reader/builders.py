"""Training objects as they are constructed: optimizers, schedulers, scalers, layers, wrappers, loaders."""

from __future__ import annotations

import re

from fallline.events import Kind
from fallline.reader.call import Call
from fallline.reader.machine import Machine
from fallline.reader.values import (
    NONE,
    Const,
    External,
    Mapping,
    Param,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
)
from fallline.syntax.modes import layer_has_mode

__all__ = [
    "criterion",
    "dataset",
    "enabled_of",
    "filled_up",
    "layer",
    "loader",
    "optimizer",
    "pads",
    "parameter_sets",
    "reduction_of",
    "sampler",
    "scaler",
    "scheduler",
    "wrapped",
]


def parameter_sets(machine: Machine, found: Value | None) -> frozenset[str] | None:
    """The parameter sets in what an optimizer or a clip was given; None where it cannot be seen."""
    if found is None:
        return None
    value = machine.settled(found)
    if isinstance(value, Params | Param):
        return value.sets or None
    if isinstance(value, Thing):
        if value.kind in {"model", "optimizer", "criterion"}:
            return value.sets or None
        if value.kind == "iterator":
            return _union(machine, value.facts["of"])
    if isinstance(value, Sequence):
        return _union(machine, value.items) if not value.open else None
    if isinstance(value, Mapping):
        return parameter_sets(machine, value.items.get("params"))
    if isinstance(value, Tensor) and value.sets:
        return value.sets
    return None


def _union(machine: Machine, values: list[Value]) -> frozenset[str] | None:
    found: frozenset[str] = frozenset()
    for value in values:
        sets = parameter_sets(machine, value)
        if sets is None:
            return None
        found |= sets
    return found or None


def optimizer(machine: Machine, call: Call, type_name: str) -> Thing:
    given = call.arg(0, "params", "parameters")
    thing = machine.make("optimizer", call.node, type=type_name)
    sets = parameter_sets(machine, given)
    if sets is not None:
        thing.facts["parameters"] = sets
    return thing


def scheduler(machine: Machine, call: Call, type_name: str) -> Thing:
    thing = machine.make("scheduler", call.node, type=type_name)
    for value in call.values:
        of = machine.settled(value)
        if isinstance(of, Thing) and of.kind == "optimizer":
            thing.facts["optimizer"] = of.id
            if of.facts.get("accelerator") is not None:
                thing.facts["accelerator"] = of.facts["accelerator"]
    return thing


def scaler(machine: Machine, call: Call) -> Thing:
    enabled = call.kwargs.get("enabled")
    return machine.make("scaler", call.node, enabled=enabled_of(machine, enabled))


def enabled_of(machine: Machine, value: Value | None) -> bool:
    """`enabled=`: true unless given; a switch where it is not known."""
    if value is None:
        return True
    known = machine.settled(value)
    if isinstance(known, Const):
        return bool(known.value)
    if isinstance(known, Unknown) and known.hint:
        hint = known.hint
        if hint.startswith("not "):
            return not machine.settings.switch(hint[4:], False)
        return machine.settings.switch(hint, True)
    return True


def layer(machine: Machine, call: Call, type_name: str) -> Value:
    if type_name.endswith("Loss"):
        return criterion(machine, call, type_name)
    if type_name in {"Parameter", "ParameterList", "ParameterDict"}:
        return Param(frozenset())
    if type_name in {"DataParallel"}:
        return wrapped(machine, call, "dp")
    thing = machine.make("model", call.node, type=type_name)
    if "BatchNorm" in type_name:
        thing.facts["batchnorm"] = True
    if type_name in {"LSTM", "GRU", "RNN"}:
        thing.facts["recurrent"] = True
    if type_name.startswith("Transformer"):
        thing.facts["transformer"] = True
    parts = list(call.values)
    for part in parts:
        inner = machine.settled(part)
        if isinstance(inner, Sequence):
            parts += inner.items
        if isinstance(inner, Thing):
            for name in ("batchnorm", "recurrent", "dropout", "transformer"):
                if inner.facts.get(name):
                    thing.facts[name] = True
    thing.facts["has_mode"] = _has_mode(machine, call, type_name)
    return thing


def _has_mode(machine: Machine, call: Call, type_name: str) -> bool | None:
    """Whether eval mode changes what this layer computes; None where it holds something that is not known."""
    if type_name not in {"Sequential", "ModuleList", "ModuleDict"}:
        return layer_has_mode(type_name, dropout="dropout" in call.kwargs)
    parts = [machine.settled(v) for v in call.values]
    if len(parts) == 1 and isinstance(parts[0], Sequence) and not parts[0].open:
        parts = [machine.settled(v) for v in parts[0].items]
    known = [p.facts.get("has_mode") if isinstance(p, Thing) else None for p in parts]
    if any(known):
        return True
    return None if call.star or None in known else False


def criterion(machine: Machine, call: Call, type_name: str) -> Thing:
    thing = machine.make("criterion", call.node, type=type_name)
    thing.facts["reduction"] = reduction_of(machine, call)
    thing.facts["ragged"] = pads(machine, call) or None
    return thing


def reduction_of(machine: Machine, call: Call) -> str | None:
    given = call.kwargs.get("reduction")
    if given is None:
        return None if call.star else "mean"
    known = machine.settled(given)
    return known.value if isinstance(known, Const) and isinstance(known.value, str) else None


# Targets that someone fills up in this file. A word such as `lengths` or `pad_token` says nothing about the targets.
_PADDING = re.compile(
    r"\bpad_sequence\(|\]\s*=\s*-100\b|\[\s*-100\s*\]\s*\*|masked_fill_?\([^)]*-100\)|full(_like)?\([^)]*-100\b"
    r"|padding_value\s*=\s*-100\b|\[\w*IGNORE_INDEX\]\s*\*|=\s*\w*IGNORE_INDEX\b|DataCollatorFor(Seq2Seq|LanguageModeling)"
)


def pads(machine: Machine, call: Call) -> bool:
    """`ignore_index` that leaves out padding: the mean is over a varying number. Blocks of fixed length have none."""
    given = call.kwargs.get("ignore_index")
    if given is None:
        return False
    known = machine.settled(given)
    # -1 and -100 are what libraries write by default; another number is the id of a token that is really there
    token = isinstance(known, Const) and known.value not in (-1, -100)
    said = isinstance(known, Unknown) and "pad" in known.hint.lower()
    return token or said or filled_up(machine)


def filled_up(machine: Machine) -> bool:
    """Whether a file on the way to here is seen to fill up targets with what is ignored."""
    return any(
        _PADDING.search(module.source.text) is not None
        for module in {id(f.module): f.module for f in machine.frames}.values()
    )


def wrapped(machine: Machine, call: Call, how: str) -> Value:
    """DDP(model) and its kin: the same parameters behind a wrapper."""
    inner = machine.settled(call.arg(0, "module", "model") or Unknown())
    if isinstance(inner, Unknown):
        inner = machine.become(inner, "model")
    if not isinstance(inner, Thing) or inner.kind != "model":
        return machine.make("model", call.node, wrapper=how)
    thing = machine.make(
        "model", call.node, **{**inner.facts, "wrapper": how, "type": inner.facts.get("type")}
    )
    thing.facts["parameters"] = inner.sets
    thing.facts["of"] = inner.id
    thing.cls = inner.cls
    inside = Thing(
        "model",
        inner.id,
        inner.at,
        {**inner.facts, "bypasses": how, "of": thing.id},
        inner.attrs,
        inner.cls,
    )
    thing.attrs["module"] = inside
    if how == "fsdp1":
        holders = [
            t
            for t in machine.things.values()
            if t.kind == "optimizer" and not t.sets.isdisjoint(inner.sets)
        ]
        if holders and not _no_shard(call):
            machine.emit(
                Kind.REPLACE,
                call.node,
                model=thing,
                optimizer=holders[0],
                what="fsdp1",
                parameters=inner.sets,
            )
        if _no_shard(call):
            thing.facts["wrapper"] = "fsdp1-no-shard"
    if how == "ddp":
        inner.facts["wrapped_by"] = thing.id
    return thing


def _no_shard(call: Call) -> bool:
    given = call.kwargs.get("sharding_strategy")
    return isinstance(given, External) and given.name.endswith("NO_SHARD")


def loader(machine: Machine, call: Call) -> Thing:
    thing = machine.make("loader", call.node)
    sampler = machine.settled(call.arg(None, "sampler") or call.arg(None, "batch_sampler") or NONE)
    if isinstance(sampler, Thing):
        thing.attrs["sampler"] = sampler
        thing.facts["sampler"] = sampler.id
    shuffle = call.arg(2, "shuffle")
    if isinstance(shuffle, Const):
        thing.facts["shuffle"] = bool(shuffle.value)
    _length(machine, thing, call)
    return thing


def _length(machine: Machine, thing: Thing, call: Call) -> None:
    data = machine.settled(call.arg(0, "dataset") or Unknown())
    size = (
        data.length
        if isinstance(data, Tensor)
        else data.facts.get("length")
        if isinstance(data, Thing)
        else None
    )
    if isinstance(data, Sequence) and not data.open:
        size = len(data.items)
    batch = call.arg(1, "batch_size")
    per = (
        batch.value
        if isinstance(batch, Const)
        else 1
        if batch is None and "batch_sampler" not in call.kwargs
        else None
    )
    drop = call.kwargs.get("drop_last")
    if (
        isinstance(size, int)
        and isinstance(per, int)
        and per > 0
        and "sampler" not in call.kwargs
        and not call.star
    ):
        whole = isinstance(drop, Const) and bool(drop.value)
        thing.facts["length"] = size // per if whole else -(-size // per)


def dataset(machine: Machine, call: Call) -> Thing:
    lengths = [t.length for t in map(machine.settled, call.args) if isinstance(t, Tensor)]
    thing = machine.make("dataset", call.node)
    if lengths and lengths[0] is not None:
        thing.facts["length"] = lengths[0]
    return thing


def sampler(machine: Machine, call: Call) -> Thing:
    shuffle = call.arg(3, "shuffle")
    on = True if shuffle is None else bool(shuffle.value) if isinstance(shuffle, Const) else None
    return machine.make("sampler", call.node, type="DistributedSampler", shuffle=on)
