"""Loops: how many times each runs on paper.

A loop over a loader gives a few batches; a loop over a few known items gives those; an unknown range runs a few times,
or twice when there is another training loop inside it (then it is an epoch loop).
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from fallline.api.values import Const, Unknown, Value
from fallline.events import Batch, Epoch, EpochEnd, Forward
from fallline.reader.assign import assign_to
from fallline.reader.machine import Machine
from fallline.reader.rarely import next_rare
from fallline.reader.relevance import called_names, relevant, steps_in, trains
from fallline.reader.streams import MOST_EXACT, Stream, stream_of

__all__ = ["BREAK", "CONTINUE", "RETURN", "run_for", "run_while"]

BREAK, CONTINUE, RETURN = "break", "continue", "return"
_FEW = 8  # iterations of a while that steps by itself


def run_for(machine: Machine, node: ast.For | ast.AsyncFor) -> str | None:
    stream = stream_of(machine, machine.evaluate(node.iter), node)
    matters = relevant(machine.module, node.body)
    if not matters and stream.kind in {"data", "many"}:
        stream = Stream("once", stream.item, 1, stream.loader)
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

    # a loop that steps by itself is not a window: it has to run on after whatever it does now and then
    most = _FEW if {"backward", "step"} <= called_names(machine.module, node) else MOST_EXACT
    return _repeat(
        machine,
        node,
        Stream("many", lambda i: Const(i)),
        begin,
        lambda: _still(machine, node.test, most),
    )


def _still(machine: Machine, test: ast.expr, most: int) -> bool:
    """Whether a while continues, as far as is known; a count above `most` is far away."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_still(machine, part, most) for part in test.values)
    value = (
        machine.evaluate(test)
        if not isinstance(test, ast.Compare)
        else _compare(machine, test, most)
    )
    if isinstance(value, Const):
        return bool(value.value)
    return True


def _compare(machine: Machine, test: ast.Compare, most: int) -> Value:
    left = machine.settled(machine.evaluate(test.left))
    right = machine.settled(machine.evaluate(test.comparators[0]))
    if isinstance(left, Const) and isinstance(right, Const) and not isinstance(left.value, str):
        # `while step < 10000` runs as often as the trace wants
        if isinstance(right.value, int) and right.value > most:
            return Unknown()
        return machine.evaluate(test)
    return Unknown()


def _repeat(
    machine: Machine,
    node: ast.For | ast.AsyncFor | ast.While,
    stream: Stream,
    begin: Callable[[int], None],
    still: Callable[[], bool] | None = None,
) -> str | None:
    outer = machine.loops.iteration
    machine.loops.kinds.append(stream.kind)
    if stream.kind != "params":
        machine.loops.nodes.append((machine.module, node))
        machine.loops.counts.append(stream.count)
        machine.loops.ends.append(stream.end)
    loader = stream.loader
    machine.loops.fed += loader is not None
    endless = bool(loader and loader.facts.get("endless"))
    if loader is not None and stream.kind == "data":
        machine.emit(Epoch(machine.place(_over(node)), loader=loader.id))
    jump: str | None = None
    index = 0
    rare: int | None = None
    backwards = machine.updates.backwards
    begun = len(machine.events)
    machine.loops.begun.append((outer, len(machine.events)))
    try:
        while True:
            if stream.count is not None and index >= stream.count:
                break
            if still is not None and not still():
                break
            before = (machine.loops.trained, machine.loops.over_data)
            machine.loops.iterations += 1
            if stream.kind in {"data", "many", "exact"}:
                machine.loops.iteration = machine.loops.iterations
                machine.loops.begun[-1] = (machine.loops.iteration, len(machine.events))
                machine.loops.passed.clear()
            if loader is not None and stream.kind == "data":
                machine.emit(
                    Batch(
                        machine.place(node.test if isinstance(node, ast.While) else node.target),
                        loader=loader.id,
                        endless=endless or None,
                        exact=loader.facts.get("exact"),
                    )
                )
                for other in stream.beside:
                    at = machine.place(node)
                    machine.emit(Batch(at, loader=other.id))
            begin(index + (rare or 0))
            jump = machine.run(node.body)
            index += 1
            if jump in (BREAK, RETURN):
                break
            if stream.count is None:
                enough = _enough(machine, before)
                if index == 1 and enough < machine.loops.length and isinstance(node, ast.For):
                    rare = next_rare(machine, node, begin)
                # it has to go on after what it does now and then
                if index >= (max(enough, 3) if rare is not None else enough):
                    break
            if stream.kind == "data" and index >= _EVALUATED and _only_evaluates(machine, node):
                break
    finally:
        machine.loops.fed -= loader is not None
        machine.loops.kinds.pop()
        machine.loops.begun.pop()
        if stream.kind != "params":
            machine.loops.nodes.pop()
            machine.loops.counts.pop()
            machine.loops.ends.pop()
        machine.loops.iteration = outer
        if machine.updates.backwards > backwards:
            machine.loops.trained += index > 1
            machine.loops.over_data += stream.kind == "data"
        elif stream.kind == "data" and machine.callers:
            # a loop that trains for one caller and evaluates for this one
            for event in machine.events[begun:]:
                if isinstance(event, Forward) and event.repeated is False:
                    event.repeated = True
    if loader is not None and stream.kind == "data" and not endless and jump not in (BREAK, RETURN):
        machine.emit(EpochEnd(machine.place(_over(node)), loader=loader.id))
    if jump == RETURN:
        return RETURN
    if jump != BREAK and node.orelse:
        return machine.run(node.orelse)
    return None


_EVALUATED = 3  # batches of a loop that trains nothing: the rest would show nothing new


def _only_evaluates(machine: Machine, node: ast.For | ast.AsyncFor | ast.While) -> bool:
    return not trains(machine.module, [node]) and not steps_in(machine.module, [node])


def _over(node: ast.For | ast.AsyncFor | ast.While) -> ast.expr:
    return node.test if isinstance(node, ast.While) else node.iter


def _enough(machine: Machine, before: tuple[int, int]) -> int:
    """How often an unknown loop runs: twice around a data loop, three times around another, else a window or two."""
    if machine.loops.over_data > before[1]:
        return 2
    if machine.loops.trained > before[0]:
        return 3
    return machine.loops.length
