"""Comparisons: what is known is computed, what is not is a switch with one value for the whole trace."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fallline.api.values import Const, Mapping, Sequence, Tensor, Unknown, Value
from fallline.reader.counts import COUNTED, SIZE, SIZED
from fallline.reader.machine import Machine
from fallline.syntax.nodes import written

__all__ = ["Answer", "compare_value", "compared", "is_number", "made", "words"]

# The value of a test, and whether it depends on the iteration.
Answer = tuple[bool, bool]

# What a program makes once, by name; the name tells it from what each iteration computes.
_MADE = "scaler optim sched sampler autocast amp ctx context ddp loader accelerator fabric sync dtype".split()
_ORDERS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(slots=True)
class Comparison:
    """Two values under one operator; `usual` is the answer taken first where it is not known, and how much it matters."""

    machine: Machine
    node: ast.Compare
    op: ast.cmpop
    left: Value
    right: Value
    usual: bool
    matters: int

    @property
    def positive(self) -> bool:
        """It asks whether they are the same, or one in the other; not whether they are not."""
        return self.op.__class__ in (ast.Is, ast.Eq, ast.In)

    def sides(self) -> Iterator[tuple[Value, Value]]:
        yield self.left, self.right
        yield self.right, self.left

    def words(self, between: str) -> str:
        """The question as it is recognised elsewhere."""
        left = _said(self.machine, self.left, self.node.left)
        right = _said(self.machine, self.right, self.node.comparators[0])
        return words(f"{left} {between} {right}")


def compared(machine: Machine, node: ast.Compare, usual: bool, matters: int) -> Answer:
    """The answer of a comparison of two values."""
    left = machine.settled(machine.evaluate(node.left))
    right = machine.settled(machine.evaluate(node.comparators[0]))
    asked = Comparison(machine, node, node.ops[0], left, right, usual, matters)
    for answer in (_none, _constants, _text, _contained, _count, _size):
        found = answer(asked)
        if found is not None:
            return found
    return _open(asked)


def _none(asked: Comparison) -> Answer | None:
    """`x is None`, `x != None`."""
    match asked.op, asked.right:
        case ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq(), Const(None):
            is_none, varying = _is_none(asked)
            return is_none is asked.positive, varying
    return None


def _is_none(asked: Comparison) -> Answer:
    machine = asked.machine
    match asked.left:
        case Const(value, varying):
            return value is None, varying
        case Unknown(hint=hint):
            hint = hint or machine.text(asked.node.left)
            if hint.endswith(".grad") or _computed_here(machine, asked.node.left):
                return False, False
            usual = asked.usual is asked.positive
            return not machine.switch(words(hint), not usual, asked.matters), False
    return False, False


def _computed_here(machine: Machine, node: ast.expr) -> bool:
    """What this iteration computed (`loss = compute(batch)`): None is an exception among batches, and no setting."""
    if not isinstance(node, ast.Name) or not machine.loops.iteration or made(node.id):
        return False
    if machine.frame.fresh.get(node.id) != machine.loops.iteration:
        return False
    bound = machine.module.bindings(node.id, machine.module.scope(node))
    names = [b for b in bound if isinstance(b, ast.Name)]
    return (
        bool(bound)
        and all(isinstance(machine.module.statement(b), ast.Assign) for b in names)
        and not any(isinstance(b, ast.arg) for b in bound)
    )


def made(name: str) -> bool:
    """Whether a name is that of something a program makes once."""
    low = name.lower()
    return low in {"model", "net"} or any(word in low for word in _MADE)


def _constants(asked: Comparison) -> Answer | None:
    match asked.left, asked.right:
        case Const() as left, Const() as right:
            known = _both_known(asked.machine, asked.op, left, right)
            return (known, left.varying or right.varying) if known is not None else None
    return None


def _both_known(machine: Machine, op: ast.cmpop, left: Const, right: Const) -> bool | None:
    a, b = left.value, right.value
    machine.counts.compared += is_number(left) or is_number(right)
    if isinstance(a, int) and isinstance(b, int) and left.varying != right.varying:
        # a counter against a literal: literals shrink as they do in loops and modulo
        a, b = machine.counts.on_paper(left), machine.counts.on_paper(right)
    try:
        match op:
            case ast.Is() | ast.IsNot():
                same = a is b or (a == b and isinstance(a, bool | int | str))
                return same is isinstance(op, ast.Is)
            case ast.In():
                return a in b
            case ast.NotIn():
                return a not in b
        return bool(_ORDERS[op.__class__](a, b))
    except (TypeError, KeyError):
        return None


def is_number(value: Const) -> bool:
    return isinstance(value.value, int | float) and not isinstance(value.value, bool)


def _text(asked: Comparison) -> Answer | None:
    """`args.kind == "amp"`: an unknown is equal to one text only."""
    if asked.op.__class__ not in (ast.Eq, ast.NotEq):
        return None
    for pair in asked.sides():
        match pair:
            case Unknown(hint=hint), Const(str(text)) if hint:
                usual = asked.usual is asked.positive
                settings = asked.machine.settings
                same = settings.equals(words(hint), [text], usual, asked.matters)
                return same is asked.positive, False
    return None


def _contained(asked: Comparison) -> Answer | None:
    """`x in y`."""
    if asked.op.__class__ not in (ast.In, ast.NotIn):
        return None
    inside, machine = asked.positive, asked.machine
    match asked.left, asked.right:
        case Const(value, varying), Sequence(items, open=False) if _all(Const, items):
            return (value in [i.value for i in items if isinstance(i, Const)]) is inside, varying
        case Const(value, varying), Mapping(items=known) if known:
            return (value in known) is inside, varying
        case Unknown(hint=hint), Sequence(items, open=False) if hint and items:
            texts = [i.value for i in items if isinstance(i, Const) and isinstance(i.value, str)]
            if len(texts) == len(items):
                usual = asked.usual is inside
                one = machine.settings.equals(words(hint), texts, usual, asked.matters)
                return one is inside, False
    value = machine.switch(asked.words("in"), asked.usual is inside, asked.matters)
    return value is inside, False


def _all(kind: type[Value], items: list[Value]) -> bool:
    return all(isinstance(item, kind) for item in items)


# How long a run is: `max_train_steps`, or what it was computed from.
_LIMIT = re.compile(r"(?i)(^|[_.])max_?(train|iter|step|epoch)|total_|epochs")


def _count(asked: Comparison) -> Answer | None:
    """An unknown count against a number: `step % args.k`, `args.k > 1`."""
    machine, order = asked.machine, _ORDERS.get(asked.op.__class__)
    if order is None:
        return None
    for pair in asked.sides():
        match pair:
            case Unknown(hint=hint), Const(int(number), varying) if not isinstance(number, bool):
                if "%" in hint:
                    continue  # the remainder of something unknown: zero now and then
                if varying and not asked.usual and _LIMIT.search(hint):
                    continue  # `if step >= max_steps: break`: far away from the steps that are read
                reached = machine.counts.ranges.get(hint)
                if not COUNTED.search(hint) and (reached is None or not varying):
                    continue
                asks = not varying and not machine.around.inside_model
                count = reached or machine.count(hint, compared=asks)
                first = pair[0] is asked.left
                return bool(order(count, number) if first else order(number, count)), varying
    return None


def _size(asked: Comparison) -> Answer | None:
    """An unknown size against a counter: `i + 1 == len(loader)`."""
    order = _ORDERS.get(asked.op.__class__)
    if order is None:
        return None
    for pair in asked.sides():
        match pair:
            case Unknown(hint=hint), Const(int(number), varying=True) if SIZED.search(hint):
                size = _length(asked.machine, hint)
                first = pair[0] is asked.left
                return bool(order(size, number) if first else order(number, size)), True
    return None


def _length(machine: Machine, hint: str) -> int:
    """In a loop over the data a length that a counter is compared with, `len(dataset) // batch_size`, is that of the data."""
    here = _gone_over(machine, hint)
    if here is not None:
        return here
    if hint.startswith("len(") and machine.loops.kinds[-1:] == ["data"]:
        return machine.loops.length
    return machine.settings.count(hint, usual=SIZE)


_LENGTH = re.compile(r"len\(([\w.]+)\)( - 1)?")


def _gone_over(machine: Machine, hint: str) -> int | None:
    """`len(pieces)`, `len(pieces) - 1` in `for i, piece in enumerate(pieces)`: as often as that loop goes round on paper."""
    asked = _LENGTH.fullmatch(hint)
    if asked is None:
        return None
    for (_, loop), count in zip(
        reversed(machine.loops.nodes), reversed(machine.loops.counts), strict=True
    ):
        if count and isinstance(loop, ast.For):
            if asked[1] in re.findall(r"[\w.]+", written(loop.iter)):
                return count - bool(asked[2])
    return None


def _open(asked: Comparison) -> Answer:
    """Nothing is known: a switch. The same question, asked the other way round, has the opposite answer."""
    machine = asked.machine
    match asked.op:
        case ast.NotEq() | ast.IsNot():
            return not machine.switch(asked.words("=="), not asked.usual, asked.matters), False
        case ast.Eq() | ast.Is():
            return machine.switch(asked.words("=="), asked.usual, asked.matters), False
    return machine.switch(words(machine.text(asked.node)), asked.usual, asked.matters), False


def _said(machine: Machine, value: Value, node: ast.expr) -> str:
    """A value in words: its hint, the constant, or its text."""
    match value:
        case Unknown(hint=hint) if hint:
            return hint
        case Const(known, varying=False):
            return repr(known)
    return machine.text(node)


def words(text: str) -> str:
    return " ".join(text.split())[:120]


def compare_value(machine: Machine, node: ast.Compare) -> Value:
    """A comparison as a value: known, or something unknown that a later test on it decides the same way."""
    if len(node.ops) != 1:
        return Unknown(words(machine.text(node)))
    left = machine.settled(machine.evaluate(node.left))
    right = machine.settled(machine.evaluate(node.comparators[0]))
    if Tensor in (left.__class__, right.__class__):
        return Tensor(False)
    if _undecidable(left) or _undecidable(right):
        asked = Comparison(machine, node, node.ops[0], left, right, True, 0)
        equal = isinstance(node.ops[0], ast.Eq)
        return Unknown(asked.words("==") if equal else words(machine.text(node)))
    value, varying = compared(machine, node, True, 0)
    return Const(value, varying, said=machine.text(node))


def _undecidable(value: Value) -> bool:
    match value:
        case Unknown(hint=hint):
            return not COUNTED.search(hint) and not SIZED.search(hint)
    return False
