"""Lists and dictionaries of things."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.gradients import keep
from fallline.api.paper import Paper
from fallline.api.values import (
    NONE,
    Const,
    Mapping,
    Params,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

__all__ = ["mapping", "sequence"]

_MOST = 2_048  # items of a list that is extended again and again


def sequence(paper: Paper, items: Sequence, name: str, call: Call) -> Value:
    if name in {"append", "add", "insert", "appendleft"}:
        value = paper.settled(call.args[-1]) if call.args else Unknown()
        if isinstance(value, Tensor):
            value = keep(paper, items, value, "append", call.node)
        for part in _tensors_in(paper, value):
            part.kept = keep(paper, items, part, "append", call.node).kept
        if len(items.items) < 64:
            items.items.append(value)
        return NONE
    if name == "extend" and call.args:
        value = paper.settled(call.args[0])
        if isinstance(value, Sequence):
            items.items += value.items[: max(0, _MOST - len(items.items))][:64]
        elif isinstance(value, Params):
            items.items.append(value)
        return NONE
    if name == "pop":
        return items.items.pop() if items.items else Unknown()
    if name == "clear":
        items.items.clear()
        items.born = paper.loops.iteration
        return NONE
    return Unknown()


def _tensors_in(paper: Paper, value: Value) -> list[Tensor]:
    """The tensors of a dictionary or a tuple that goes into a list as a whole."""
    match value:
        case Mapping(items=named):
            held = list(named.values())
        case Sequence(items=held):
            pass
        case _:
            return []
    return [part for part in map(paper.settled, held) if isinstance(part, Tensor)]


def mapping(paper: Paper, items: Mapping, name: str, call: Call) -> Value:
    if name == "items":
        return Sequence([Sequence([Const(k), v]) for k, v in items.items.items()])
    if name == "values":
        return Sequence(list(items.items.values()))
    if name == "keys":
        return Sequence([Const(k) for k in items.items])
    if name in {"get", "pop"} and call.args and isinstance(call.args[0], Const):
        found = items.get(call.args[0].value)
        return found if found is not None else call.args[1] if len(call.args) > 1 else Unknown()
    if name == "update" and call.args and isinstance(call.args[0], Mapping):
        items.items.update(call.args[0].items)
    return Unknown()
