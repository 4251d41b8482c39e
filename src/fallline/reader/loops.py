"""Loops: how many times each runs on paper, and what its items are.

A loop over a loader gives a few batches; a loop over a few known items gives those; an unknown range runs a few times,
or twice when there is another training loop inside it (then it is an epoch loop).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fallline.events import Kind
from fallline.reader.counts import COUNTED, SIZE, SIZED, small
from fallline.reader.evaluate import evaluate
from fallline.reader.machine import Machine
from fallline.reader.relevance import called_names, relevant, steps_in, trains
from fallline.reader.values import (
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

__all__ = ["Stream", "run_for", "run_while", "stream_of"]

_MOST_EXACT = 24
_FEW = 8  # up to here a count is executed as it is


@dataclass
class Stream:
    """What a for loop goes over. `count` None: as often as the trace wants."""

    kind: str  # "data" | "many" | "exact" (a known range) | "items" (known things) | "params" | "once"
    item: Callable[[int], Value]
    count: int | None = None
    loader: Thing | None = None
    soft: bool = False  # the count is only a guess
    beside: tuple[Thing, ...] = ()  # further loaders that give a batch with each of this one's


def run_for(machine: Machine, node: ast.For | ast.AsyncFor) -> str | None:
    from fallline.reader.statements import assign_to

    stream = stream_of(machine, evaluate(machine, node.iter), node)
    matters = relevant(machine.module, node.body)
    if not matters and stream.kind in {"data", "many"}:
        stream = Stream("once", stream.item, 1)
    if stream.kind == "items" and trains(machine.module, node.body):
        stream.kind = "exact"  # a list of batches

    def begin(index: int) -> None:
        assign_to(machine, node.target, stream.item(index), node.target)

    return _repeat(machine, node, stream, begin)


def run_while(machine: Machine, node: ast.While) -> str | None:
    if not relevant(machine.module, node.body):
        return _repeat(machine, node, Stream("once", lambda i: Const(i), 1), lambda i: None)

    def begin(index: int) -> None:
        return None

    # a loop that steps by itself is no window: it has to run on after whatever it does now and then
    most = _FEW if {"backward", "step"} <= called_names(node) else _MOST_EXACT
    return _repeat(
        machine,
        node,
        Stream("many", lambda i: Const(i)),
        begin,
        lambda: _still(machine, node.test, most),
    )


def _still(machine: Machine, test: ast.expr, most: int) -> bool:
    """Whether a while goes on, as far as is known; a count above `most` is far away."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_still(machine, part, most) for part in test.values)
    value = (
        evaluate(machine, test)
        if not isinstance(test, ast.Compare)
        else _compare(machine, test, most)
    )
    if isinstance(value, Const):
        return bool(value.value)
    return True


def _compare(machine: Machine, test: ast.Compare, most: int) -> Value:
    left = machine.settled(evaluate(machine, test.left))
    right = machine.settled(evaluate(machine, test.comparators[0]))
    if isinstance(left, Const) and isinstance(right, Const) and not isinstance(left.value, str):
        # `while step < 10000` runs as often as the trace wants
        if isinstance(right.value, int) and right.value > most:
            return Unknown()
        return evaluate(machine, test)
    return Unknown()


def _repeat(
    machine: Machine,
    node: ast.For | ast.AsyncFor | ast.While,
    stream: Stream,
    begin: Callable[[int], None],
    still: Callable[[], bool] | None = None,
) -> str | None:
    from fallline.reader.statements import BREAK, RETURN, run_block

    outer = machine.iteration
    machine.loops.append(stream.kind)
    if stream.kind != "params":
        machine.loop_nodes.append((machine.module, node))
    loader = stream.loader
    endless = bool(loader and loader.facts.get("endless"))
    if loader is not None and stream.kind == "data":
        machine.emit(
            Kind.EPOCH, node.iter if not isinstance(node, ast.While) else node.test, loader=loader
        )
    jump: str | None = None
    index = 0
    backwards = machine.backwards
    begun = len(machine.events)
    machine.begun.append((outer, len(machine.events)))
    try:
        while True:
            if stream.count is not None and index >= stream.count:
                break
            if still is not None and not still():
                break
            before = (machine.training_loops, machine.data_loops)
            machine.iterations += 1
            if stream.kind in {"data", "many", "exact"}:
                machine.iteration = machine.iterations
                machine.begun[-1] = (machine.iteration, len(machine.events))
                machine.passed.clear()
            if loader is not None and stream.kind == "data":
                last = (
                    index == stream.count - 1 if stream.count is not None and not endless else False
                )
                machine.emit(
                    Kind.BATCH,
                    node.target if not isinstance(node, ast.While) else node.test,
                    loader=loader,
                    index=index,
                    last=last,
                    endless=endless or None,
                    exact=loader.facts.get("exact"),
                )
                for other in stream.beside:
                    machine.emit(Kind.BATCH, node, loader=other, index=index, last=last)
            begin(index)
            jump = run_block(machine, node.body)
            index += 1
            if jump in (BREAK, RETURN):
                break
            if stream.count is None and index >= _enough(machine, before):
                break
    finally:
        machine.loops.pop()
        machine.begun.pop()
        if stream.kind != "params":
            machine.loop_nodes.pop()
        machine.iteration = outer
        if machine.backwards > backwards:
            machine.training_loops += index > 1
            machine.data_loops += stream.kind == "data"
        elif stream.kind == "data" and machine.callers:
            # a loop that trains for one caller and evaluates for this one
            for event in machine.events[begun:]:
                if event.facts.get("repeated") is False:
                    event.facts["repeated"] = True
    if loader is not None and stream.kind == "data" and not endless and jump not in (BREAK, RETURN):
        machine.emit(
            Kind.EPOCH_END,
            node.iter if not isinstance(node, ast.While) else node.test,
            loader=loader,
        )
    if jump == RETURN:
        return RETURN
    if jump != BREAK and node.orelse:
        return run_block(machine, node.orelse)
    return None


def _enough(machine: Machine, before: tuple[int, int]) -> int:
    """How often an unknown loop runs: twice around a data loop, three times around another, else a window or two."""
    if machine.data_loops > before[1]:
        return 2
    if machine.training_loops > before[0]:
        return 3
    return machine.length


def stream_of(machine: Machine, found: Value, node: ast.For | ast.AsyncFor | None) -> Stream:
    """What going over a value gives."""
    value = machine.settled(found)
    if isinstance(value, Sequence):
        items = value.items[:_MOST_EXACT]
        if value.open and not items:
            return Stream("once", lambda i: Unknown(), 1)
        return Stream("items", lambda i: items[i] if i < len(items) else Unknown(), len(items))
    if isinstance(value, Mapping):
        keys = list(value.items)[:_MOST_EXACT]
        return Stream("items", lambda i: Const(keys[i]) if i < len(keys) else Unknown(), len(keys))
    if isinstance(value, Params):
        name = "params"
        if value.named:
            return Stream(name, lambda i: Sequence([Unknown("name"), Param(value.sets)]), 1)
        return Stream(name, lambda i: Param(value.sets), 1)
    if isinstance(value, Thing):
        return _thing(machine, value, node)
    if isinstance(value, Tensor):
        return Stream(
            "items", lambda i: Tensor(value.graph, value.sets, value.forwards), 2, soft=True
        )
    if isinstance(value, Unknown):
        return _unknown(machine, value, node)
    return Stream("once", lambda i: Unknown(), 1)


def _thing(machine: Machine, value: Thing, node: ast.For | ast.AsyncFor | None) -> Stream:
    facts = value.facts
    if value.kind == "loader":
        return Stream("data", lambda i: Tensor(False), machine_length(machine, value), value)
    if value.kind == "iterator":
        wrap = facts["wrap"]
        if wrap == "range":
            return _range(machine, value, node)
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
    if value.kind in {"model", "criterion"}:
        # for layer in model: parts of the same parameters
        return Stream("items", lambda i: value, 1)
    if value.kind == "dataset":
        return Stream("data", lambda i: Tensor(False), machine_length(machine, value), value)
    if value.kind == "object" and value.cls is not None:
        value.kind = "loader"  # an object of the project that is gone over gives batches
        body = ast.dump(value.cls[1])
        if "StopIteration" in body or "While(test=Constant(value=True)" in body:
            facts["endless"] = True
        return Stream("data", lambda i: Tensor(False), machine_length(machine, value), value)
    return Stream("once", lambda i: Unknown(), 1)


def _range(machine: Machine, value: Thing, node: ast.For | ast.AsyncFor | None) -> Stream:
    bounds: list[Value] = value.facts["of"]
    numbers = [_bound(machine, b, len(bounds) == 3) for b in bounds]
    if any(n is None for n in numbers):
        if len(bounds) == 1 and isinstance(bounds[0], Unknown) and bounds[0].hint:
            machine.ranges[bounds[0].hint] = machine.length
        return Stream("many", lambda i: Const(i, True))
    known = [n for n in numbers if n is not None]
    large = len(known) == 1 and known[0] > 8 and not value.facts.get("of_loader")
    if large and node is not None and _is_window(machine, node):
        machine.shrunk[known[0]] = small(known[0])
        return Stream("exact", lambda i: Const(i, True), small(known[0]))
    steps = range(*([small(known[0])] if large else known)) if 0 not in known[2:] else range(0)
    if large and value.facts.get("trains", True):
        return Stream("many", lambda i: Const(i, True))
    if len(steps) > machine.length + 4 and not value.facts.get("of_loader"):
        first = steps[0]
        return Stream("many", lambda i: Const(first + i * steps.step, True))
    return Stream("exact", lambda i: Const(steps[i], True), len(steps))


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
            return machine.settings.count(value.hint)
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
    if kind == "loader" or training:
        thing = machine.become(value, "loader")
        return Stream("data", lambda i: Tensor(False), machine_length(machine, thing), thing)
    return Stream(
        "many" if node is not None and relevant(machine.module, node.body) else "once",
        lambda i: Unknown(),
        None if node is not None and relevant(machine.module, node.body) else 1,
    )


def machine_length(machine: Machine, loader: Thing) -> int:
    """How many batches a loader gives in this trace: its own number where that is known and small."""
    known = loader.facts.get("length")
    if isinstance(known, int) and known > 0:
        if known <= 20:
            return known
        window = max([w for w in machine.expected if w > 1], default=1)
        return 2 * window + known % window if window > 1 else machine.length
    return machine.length
