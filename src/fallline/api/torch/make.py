"""Training objects as they are constructed: optimizers, schedulers, scalers, layers, wrappers, loaders."""

from __future__ import annotations

import ast
import re

from fallline.api.arithmetic import filled_up
from fallline.api.call import Call
from fallline.api.gradients import parameter_sets
from fallline.api.paper import Paper
from fallline.api.values import (
    NONE,
    Const,
    External,
    Param,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    truth_of,
)
from fallline.events import Replace
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.modes import layer_has_mode
from fallline.syntax.nodes import below

__all__ = [
    "batches_of",
    "criterion",
    "dataset",
    "enabled_of",
    "layer",
    "loader",
    "optimizer",
    "pads",
    "reduction_of",
    "sampler",
    "scaler",
    "scheduler",
    "set_up_loader",
    "wrapped",
]


_BATCHES = re.compile(r"\blen\([\w.\[\]'\"]*(loader|_dl|batches|data_?iter)", re.I)
_ONE_DEVICE = re.compile(
    r"""^[ \t]*os\.environ(\.setdefault\(|\[)["']CUDA_VISIBLE_DEVICES["'](\]\s*=|,)\s*["']\d["']""",
    re.M,
)
_MOST_NAMES = 24  # that are followed to what a schedule's length is made of
_MOST_PARTS = 4_096  # of a model that are looked at one by one


def optimizer(paper: Paper, call: Call, type_name: str) -> Thing:
    given = call.arg(0, "params", "parameters")
    thing = paper.make("optimizer", call.node, type=type_name)
    rate = paper.module.argument(call.node, 1, "lr")
    match paper.module.value(rate) if rate is not None else None:
        case ast.BinOp(_, ast.Div(), ast.Name() | ast.Attribute()):
            thing.facts["shared"] = True
    sets = parameter_sets(paper, given)
    if sets is not None:
        sets = _own_sets(paper, sets)
        thing.facts["parameters"] = sets
        for model in paper.things.values():
            if model.kind == "model" and not model.sets.isdisjoint(sets):
                model.facts.pop("frozen", None)  # what an optimizer is given is to learn
    match paper.settled(given) if given is not None else None:
        case Sequence([_, *_] as items, open=False):
            given_by_hand = map(paper.settled, items)
            own = (isinstance(v, Tensor) or v == Param(frozenset()) for v in given_by_hand)
            thing.facts["loose"] = all(own) or None
    return thing


def _own_sets(paper: Paper, sets: frozenset[str]) -> frozenset[str]:
    """What an optimizer is built of in view is told apart from what others are built of, also where the models were only handed over."""
    for model in [t for t in paper.things.values() if t.kind == "model" and t.sets <= sets]:
        if any(name.startswith("?") for name in model.sets):
            model.facts["parameters"] = frozenset(name.lstrip("?") for name in model.sets)
    return frozenset(name.lstrip("?") for name in sets)


def scheduler(paper: Paper, call: Call, type_name: str) -> Thing | None:
    """By its name alone many a class is one: it has to be given a training object."""
    if not any(isinstance(paper.settled(v), Thing) for v in call.values):
        return None
    thing = paper.make("scheduler", call.node, type=type_name)
    thing.facts["in_batches"] = _counts_batches(paper, call.node)
    thing.facts["jumps"] = _jumps(paper, call, type_name)
    place, name = _LENGTHS.get(type_name.rpartition(".")[2], (None, "num_training_steps"))
    length = call.arg(place, name)
    if length is not None:
        thing.attrs["length"] = paper.settled(length)
    for value in call.values:
        of = paper.settled(value)
        if isinstance(of, Thing) and of.kind == "optimizer":
            thing.facts["optimizer"] = of.id
            if of.facts.get("accelerator") is not None:
                thing.facts["accelerator"] = of.facts["accelerator"]
    return thing


# Where schedules that run once from their beginning to their end take their length.
_LENGTHS = {
    "CosineAnnealingLR": (1, "T_max"),
    "PolynomialLR": (1, "total_iters"),
    "get_scheduler": (3, "num_training_steps"),
    "get_linear_schedule_with_warmup": (2, "num_training_steps"),
    "get_cosine_schedule_with_warmup": (2, "num_training_steps"),
}


def _jumps(paper: Paper, call: Call, type_name: str) -> bool | None:
    """`StepLR(optimizer, 1)`: a tenth of the rate at every step."""
    size = paper.settled(call.arg(1, "step_size") or Unknown())
    every_time = isinstance(size, Const) and size.value == 1
    return (type_name.rpartition(".")[2] == "StepLR" and every_time) or None


def _counts_batches(paper: Paper, node: ast.Call) -> bool | None:
    """`T_max=epochs * len(loader)`, also through names; divided by a number of micro-batches it counts updates."""
    given: list[ast.expr] = [*node.args, *(k.value for k in node.keywords)]
    texts: list[str] = []
    for part in given:
        value = paper.module.value(part)
        texts.append(paper.text(value))
        if len(given) < _MOST_NAMES:
            given += [n for n in below(value, ast.Name) if n is not part]
    batches = any(map(_BATCHES.search, texts))
    return (batches and not any("/" in t or "accum" in t.lower() for t in texts)) or None


def scaler(paper: Paper, call: Call) -> Thing:
    enabled = call.kwargs.get("enabled")
    return paper.make("scaler", call.node, enabled=enabled_of(paper, enabled))


def enabled_of(paper: Paper, value: Value | None) -> bool:
    """`enabled=`: true unless given; a switch where it is not known."""
    if value is None:
        return True
    known = paper.settled(value)
    if isinstance(known, Const):
        return bool(known.value)
    if isinstance(known, Unknown) and known.hint:
        hint = known.hint
        if hint.startswith("not "):
            return not paper.switch(hint[4:], False)
        return paper.switch(hint, True)
    return True


def layer(paper: Paper, call: Call, type_name: str) -> Value:
    if type_name.endswith("Loss"):
        return criterion(paper, call, type_name)
    if type_name in {"Parameter", "ParameterList", "ParameterDict"}:
        return Param(frozenset())
    if type_name in {"DataParallel"}:
        return wrapped(paper, call, "dp")
    thing = paper.make("model", call.node, type=type_name)
    if "BatchNorm" in type_name:
        thing.facts["batchnorm"] = True
    parts = list(call.values)
    for part in parts:
        inner = paper.settled(part)
        if isinstance(inner, Sequence) and len(parts) < _MOST_PARTS:
            parts += inner.items
        if isinstance(inner, Thing) and inner.facts.get("batchnorm"):
            thing.facts["batchnorm"] = True
    thing.facts["has_mode"] = _has_mode(paper, call, type_name)
    return thing


def _has_mode(paper: Paper, call: Call, type_name: str) -> bool | None:
    """Whether eval mode changes what this layer computes; None where it holds something that is not known."""
    if type_name not in {"Sequential", "ModuleList", "ModuleDict"}:
        return layer_has_mode(type_name, dropout="dropout" in call.kwargs)
    parts = [paper.settled(v) for v in call.values]
    if len(parts) == 1 and isinstance(parts[0], Sequence) and not parts[0].open:
        parts = [paper.settled(v) for v in parts[0].items]
    known = [p.facts.get("has_mode") if isinstance(p, Thing) else None for p in parts]
    if any(known):
        return True
    return None if call.star or None in known else False


def criterion(paper: Paper, call: Call, type_name: str) -> Thing:
    thing = paper.make("criterion", call.node, type=type_name)
    thing.facts["reduction"] = reduction_of(paper, call)
    thing.facts["ragged"] = pads(paper, call) or None
    return thing


def reduction_of(paper: Paper, call: Call) -> str | None:
    given = call.kwargs.get("reduction")
    if given is None:
        return None if call.star else "mean"
    known = paper.settled(given)
    return known.value if isinstance(known, Const) and isinstance(known.value, str) else None


def pads(paper: Paper, call: Call) -> bool:
    """`ignore_index` that leaves out padding: the mean is over a varying number. Blocks of fixed length have none."""
    given = call.kwargs.get("ignore_index")
    if given is None:
        return False
    known = paper.settled(given)
    # -1 and -100 are what libraries write by default; another number is the id of a token that is really there
    token = isinstance(known, Const) and known.value not in (-1, -100)
    said = isinstance(known, Unknown) and "pad" in known.hint.lower()
    return token or said or filled_up(paper)


def wrapped(paper: Paper, call: Call, how: str) -> Value:
    """DDP(model) and its kin: the same parameters behind a wrapper."""
    inner = paper.settled(call.arg(0, "module", "model") or Unknown())
    if isinstance(inner, Unknown):
        inner = paper.become(inner, "model")
    if not isinstance(inner, Thing) or inner.kind != "model":
        return paper.make("model", call.node, wrapper=how)
    # a model that was taken out of its wrapper, changed and wrapped again goes past nothing
    facts = {name: fact for name, fact in inner.facts.items() if name != "bypasses"}
    thing = paper.make("model", call.node, **{**facts, "wrapper": how, "type": facts.get("type")})
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
            for t in paper.things.values()
            if t.kind == "optimizer" and not t.sets.isdisjoint(inner.sets)
        ]
        if holders and not _no_shard(call):
            paper.emit(
                Replace(
                    paper.place(call.node),
                    model=thing.id,
                    optimizer=holders[0].id,
                    what="fsdp1",
                    parameters=inner.sets,
                )
            )
        if _no_shard(call):
            thing.facts["wrapper"] = "fsdp1-no-shard"
    if how == "ddp":
        inner.facts["wrapped_by"] = thing.id
        thing.facts["one_device"] = any(map(_sees_one_device, paper.modules())) or None
    return thing


def _sees_one_device(module: Module) -> bool:
    return _ONE_DEVICE.search(module.source.text) is not None


def _no_shard(call: Call) -> bool:
    given = call.kwargs.get("sharding_strategy")
    return isinstance(given, External) and given.name.endswith("NO_SHARD")


def loader(paper: Paper, call: Call) -> Thing:
    thing = paper.make("loader", call.node)
    set_up_loader(paper, thing, call)
    return thing


def set_up_loader(paper: Paper, thing: Thing, call: Call) -> None:
    """What a loader was made of: its sampler, whether it shuffles, how many batches it gives."""
    given = call.arg(None, "sampler") or call.arg(None, "batch_sampler") or NONE
    sampler = _innermost(paper, paper.settled(given))
    if isinstance(sampler, Thing):
        thing.attrs["sampler"] = sampler
        thing.facts["sampler"] = sampler.id
    shuffle = call.arg(2, "shuffle")
    if isinstance(shuffle, Const):
        thing.facts["shuffle"] = bool(shuffle.value)
    _length(paper, thing, call)


def _length(paper: Paper, thing: Thing, call: Call) -> None:
    data = paper.settled(call.arg(0, "dataset") or Unknown())
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
        whole = truth_of(drop) is True
        thing.facts["length"] = size // per if whole else -(-size // per)
        if not whole and drop is None and size > per and size % per:
            thing.facts["leftover"] = size % per


def dataset(paper: Paper, call: Call) -> Thing:
    lengths = [t.length for t in map(paper.settled, call.args) if isinstance(t, Tensor)]
    thing = paper.make("dataset", call.node)
    if lengths and lengths[0] is not None:
        thing.facts["length"] = lengths[0]
    return thing


def _innermost(paper: Paper, value: Value) -> Value:
    """The sampler whose order it is: one of the project's own that groups what another one gives keeps that one, unless it knows its epoch itself."""
    if isinstance(value, Thing) and value.kind == "object":
        if value.cls is None or find_method(*value.cls, "set_epoch") is not None:
            return value
        held = [paper.settled(part) for part in value.attrs.values()]
        match [h for h in held if isinstance(h, Thing) and h.kind == "sampler"]:
            case [inner]:
                return inner
    return value


def batches_of(paper: Paper, call: Call) -> Value:
    """`BatchSampler(sampler, batch_size, drop_last)`: the order is that of the sampler."""
    return paper.settled(call.arg(0, "sampler") or Unknown())


def sampler(paper: Paper, call: Call) -> Thing:
    shuffle = call.arg(3, "shuffle")
    on = True if shuffle is None else truth_of(shuffle)
    return paper.make("sampler", call.node, type="DistributedSampler", shuffle=on)
