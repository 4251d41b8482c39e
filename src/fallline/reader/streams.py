"""What a loop goes over: how many items there are on paper, and what each is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fallline.api.values import (
    Const,
    Mapping,
    Param,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    kind_by_name,
)
from fallline.reader.counts import COUNTED, SIZE, SIZED, small
from fallline.reader.machine import Machine
from fallline.reader.relevance import relevant, steps_in, trains
from fallline.syntax.nodes import below

__all__ = ["MOST_EXACT", "Stream", "batches", "stream_of"]

MOST_EXACT = 24
_FEW = 8  # up to here a count is executed as it is


@dataclass
class Stream:
    """What a for loop goes over. `count` None: as often as the trace wants."""

    kind: str  # "data" | "many" | "exact" (a known range) | "items" (known things) | "params" | "once"
    item: Callable[[int], Value]
    count: int | None = None
    loader: Thing | None = None
    soft: bool = False  # the count is only a guess
    end: Value | None = None  # what `range(...)` goes up to
    beside: tuple[Thing, ...] = ()  # further loaders that give a batch with each of this one's


def stream_of(machine: Machine, found: Value, node: ast.For | ast.AsyncFor | None) -> Stream:
    """What going over a value gives."""
    value = machine.settled(found)
    match value:
        case Sequence(items=[], open=False) | Sequence(items=[_, *_]):
            items = value.items[:MOST_EXACT]
            return Stream("items", lambda i: items[i] if i < len(items) else Unknown(), len(items))
        case Mapping():
            keys = [Const(key) for key in list(value.items)[:MOST_EXACT]]
            return Stream("items", lambda i: keys[i] if i < len(keys) else Unknown(), len(keys))
        case Params(sets, named=True):
            return Stream("params", lambda i: Sequence([Unknown("name"), Param(sets)]), 1)
        case Params(sets):
            return Stream("params", lambda i: Param(sets), 1)
        case Thing():
            return _thing(machine, value, node)
        case Tensor(graph, sets, forwards):
            return Stream("items", lambda i: Tensor(graph, sets, forwards), 2, soft=True)
        case Unknown():
            return _unknown(machine, value, node)
    return Stream("once", lambda i: Unknown(), 1)


def _thing(machine: Machine, value: Thing, node: ast.For | ast.AsyncFor | None) -> Stream:
    facts = value.facts
    if value.kind == "loader":
        return Stream("data", lambda i: Tensor(False), batches(machine, value), value)
    if value.kind == "iterator":
        wrap = facts["wrap"]
        if wrap == "range":
            stream = _range(machine, value, node)
            stream.end = _end(facts["of"])
            return stream
        inner = [stream_of(machine, v, node) for v in facts["of"]]
        lead = next(
            (s for s in inner if s.kind == "data"),
            next((s for s in inner if s.count is None), inner[0]),
        )
        counts = [s.count for s in inner if s.count is not None and not s.soft]
        counts = counts or [s.count for s in inner if s.count is not None]
        count = lead.count if lead.kind == "data" else (min(counts) if counts else None)
        if wrap == "enumerate":
            start = facts.get("start", 0)
            return Stream(
                lead.kind,
                lambda i: Sequence([Const(i + start, True), lead.item(i)]),
                lead.count,
                lead.loader,
            )
        if wrap == "zip":
            beside = tuple(
                s.loader for s in inner if s.loader is not None and s.loader is not lead.loader
            )
            return Stream(
                lead.kind,
                lambda i: Sequence([s.item(i) for s in inner]),
                count,
                lead.loader,
                beside=beside,
            )
        if wrap == "cycle" and lead.count:
            turns = lead.count
            return Stream("many", lambda i: lead.item(i % turns))
        return lead
    if value.kind in {"optimizer", "scheduler"}:
        # `self.optimizers`, given by someone: the same one in every iteration, not a new one each time
        return Stream("exact", lambda i: value, 1)
    if value.kind in {"model", "criterion"}:
        # for layer in model: parts of the same parameters
        return Stream("items", lambda i: value, 1)
    if value.kind == "dataset":
        facts["gone_over"] = True
        return Stream("data", lambda i: Tensor(False), batches(machine, value), value)
    if value.kind == "object" and value.cls is not None:
        value.kind = "loader"  # an object of the project that is gone over gives batches
        body = ast.dump(value.cls[1])
        if "StopIteration" in body or "While(test=Constant(value=True)" in body:
            facts["endless"] = True
        return Stream("data", lambda i: Tensor(False), batches(machine, value), value)
    return Stream("once", lambda i: Unknown(), 1)


def _range(machine: Machine, value: Thing, node: ast.For | ast.AsyncFor | None) -> Stream:
    bounds: list[Value] = value.facts["of"]
    if not 0 < len(bounds) < 4:
        return Stream("once", lambda i: Unknown(), 1)  # `range()`: it would fail
    numbers = [_bound(machine, b, len(bounds) == 3) for b in bounds]
    if any(n is None for n in numbers) or not 1 <= len(numbers) <= 3:  # `range(*bounds)`
        if len(bounds) == 1 and isinstance(bounds[0], Unknown) and bounds[0].hint:
            if _is_none_at_all(machine, bounds[0].hint):
                return Stream("exact", lambda i: Const(i, True), 0)
            machine.counts.ranges[bounds[0].hint] = machine.loops.length
        return Stream("many", lambda i: Const(i, True))
    known = [n for n in numbers if n is not None]
    large = len(known) == 1 and known[0] > 8 and not value.facts.get("of_loader")
    if large and node is not None and _is_window(machine, node):
        machine.counts.shrunk[known[0]] = small(known[0])
        return Stream("exact", lambda i: Const(i, True), small(known[0]))
    steps = range(*([small(known[0])] if large else known)) if 0 not in known[2:] else range(0)
    if large and value.facts.get("trains", True):
        return Stream("many", lambda i: Const(i, True))
    if len(steps) > machine.loops.length + 4 and not value.facts.get("of_loader"):
        first = steps[0]
        return Stream("many", lambda i: Const(first + i * steps.step, True))
    return Stream("exact", lambda i: Const(steps[i], True), len(steps))


def _is_none_at_all(machine: Machine, hint: str) -> bool:
    """`for _ in range(args.k)` where `if args.k > 0` was answered no before."""
    met = machine.settings.met
    return 0 in (met.get(f"{hint} > 0"), met.get(f"{hint} >= 1"), met.get(hint))


def _end(bounds: list[Value]) -> Value | None:
    """What `range(epochs)`, `range(start, epochs)` and `range(1, epochs + 1)` count up to, as if they began at nought."""
    match bounds:
        case [Const(1), Unknown(hint=hint), *_] if hint.endswith(" + 1"):
            return Unknown(hint.removesuffix(" + 1"))
        case [end] | [_, end, *_] if isinstance(end, Unknown):
            return end
        case [Const(int(end))]:
            return bounds[0]
        case [Const(int(start)), Const(int(end)), *_]:
            return Const(end - start)
    return None


def _is_window(machine: Machine, node: ast.For | ast.AsyncFor) -> bool:
    """A loop over micro-batches: it runs backward passes, and the step comes after it."""
    return trains(machine.module, node.body) and not steps_in(machine.module, node.body)


def _bound(machine: Machine, value: Value, stepped: bool) -> int | None:
    if isinstance(value, Const) and isinstance(value.value, int):
        return value.value
    if isinstance(value, Unknown) and value.became is None:
        if COUNTED.search(value.hint) and not any(
            w in value.hint.lower() for w in ("epoch", "num_", "iter", "every")
        ):
            return machine.count(value.hint)
        if stepped and SIZED.search(value.hint):
            return machine.settings.count(value.hint, usual=SIZE)
    return None


def _unknown(machine: Machine, value: Unknown, node: ast.For | ast.AsyncFor | None) -> Stream:
    kind = kind_by_name(value.hint)
    if kind in {"optimizer", "scheduler"}:
        thing = machine.become(value, kind)
        return Stream("exact", lambda i: thing, 1)
    if kind == "model":
        return Stream("items", lambda i: value, 1)
    training = node is not None and trains(machine.module, node.body)
    if kind == "loader" or training or (node is not None and _feeds(machine, node)):
        thing = machine.become(value, "loader")
        return Stream("data", lambda i: Tensor(False), batches(machine, thing), thing)
    return Stream(
        "many" if node is not None and relevant(machine.module, node.body) else "once",
        lambda i: Unknown(),
        None if node is not None and relevant(machine.module, node.body) else 1,
    )


def _feeds(machine: Machine, node: ast.For | ast.AsyncFor) -> bool:
    """`for batch in split: out = model(batch[0])`, of a split that the function is given: what a model is called with comes from data."""
    function = machine.module.function(node)
    given = {a.arg for a in below(function.args, ast.arg)} if function is not None else set()
    if machine.around.inside_model or given.isdisjoint(n.id for n in below(node.iter, ast.Name)):
        return False
    item = {n.id for n in below(node.target, ast.Name)}
    for call in below(node, ast.Call):
        handed = (*call.args, *(k.value for k in call.keywords))
        if any(n.id in item for h in handed for n in below(h, ast.Name)):
            match call.func:
                case ast.Name() | ast.Attribute(ast.Name()):
                    called = machine.settled(machine.evaluate(call.func))
                    if isinstance(called, Thing) and called.kind == "model":
                        return True
    return False


def batches(machine: Machine, loader: Thing) -> int:
    """How many batches a loader gives in this trace: its own number where that is known and small."""
    known = loader.facts.get("length")
    if isinstance(known, int) and known > 0:
        if known <= 20:
            return known
        window = max([w for w in machine.loops.expected if w > 1], default=1)
        return 2 * window + known % window if window > 1 else machine.loops.length
    return machine.loops.length
