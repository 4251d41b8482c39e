"""What a program does with gradients by hand, and with losses it keeps."""

from __future__ import annotations

import ast

from fallline.events import Kind
from fallline.reader.machine import Machine
from fallline.reader.values import (
    Const,
    Mapping,
    Sequence,
    Tensor,
    Value,
    replace,
)

__all__ = ["accumulate", "assign", "keep", "read", "used", "write"]


def assign(machine: Machine, sets: frozenset[str], value: Value, node: ast.AST) -> None:
    """`p.grad = None` clears; anything else is a gradient made by hand."""
    if isinstance(value, Const) and value.value is None:
        machine.emit(Kind.ZERO_GRAD, node, clears="none", parameters=sets or None)
        return
    if isinstance(value, Tensor) and value.grad_of is not None and value.divided:
        machine.emit(Kind.GRAD_WRITE, node, op="div", parameters=sets or None)
        return
    machine.emit(Kind.GRAD_WRITE, node, op="assign", parameters=sets or None)


def write(machine: Machine, sets: frozenset[str], op: str, node: ast.AST) -> None:
    """`p.grad /= k`, `p.grad.mul_(x)`, ..."""
    machine.emit(Kind.GRAD_WRITE, node, op=op, parameters=sets or None)


def read(machine: Machine, sets: frozenset[str], what: str, node: ast.AST) -> None:
    """`p.grad.norm()` and its kin. The same line counts once in an iteration."""
    place = machine.place(node)
    for event in reversed(machine.events[-6:]):
        if (
            event.kind is Kind.GRAD_READ
            and event.at.line == place.line
            and event.at.path == place.path
        ):
            return
    machine.emit(Kind.GRAD_READ, node, what=what, parameters=sets or None)


def used(machine: Machine, value: Value, sets: frozenset[str], node: ast.AST) -> None:
    """A parameter changed by hand: an update of its own making if a gradient is in it."""
    machine.emit(Kind.GRAD_READ, node, what="use", parameters=sets or None)


def _models(machine: Machine, tensor: Tensor) -> tuple[str, ...]:
    """The models whose forward passes a tensor came from."""
    found = (machine.events[order].model for order in sorted(tensor.forwards))
    return tuple(dict.fromkeys(m for m in found if m is not None))


def keep(
    machine: Machine, container: Sequence | Mapping, tensor: Tensor, how: str, node: ast.AST
) -> Tensor:
    """A tensor goes into a container; a leak when it still has its graph and the container outlives the iteration."""
    if not tensor.graph or tensor.grad_of is not None:
        return tensor
    if not machine.outlives(container.born, tensor.forwards):
        return tensor
    event = machine.emit(
        Kind.KEEP,
        node,
        how=how,
        born=container.born,
        of=_models(machine, tensor),
        parameters=tensor.sets or None,
    )
    return replace(tensor, kept=tensor.kept | {event.order})


def accumulate(
    machine: Machine, node: ast.AugAssign | ast.Assign, value: Tensor, new: Tensor
) -> Tensor:
    """`total += loss` or `total = total + loss`, where total is older than this iteration."""
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    born = machine.frame.fresh.get(target.id, 0) if isinstance(target, ast.Name) else 0
    if not value.graph or not machine.recording or not machine.outlives(born, value.forwards):
        return new
    # the sum is given its name anew each time: it is as old as the first of what is in it
    before = (machine.events[order] for order in sorted(new.kept - value.kept))
    born = next((e.facts["born"] for e in before if e.at == machine.place(node)), born)
    event = machine.emit(
        Kind.KEEP,
        node,
        how="add",
        born=born,
        of=_models(machine, value),
        parameters=value.sets or None,
    )
    return replace(new, kept=new.kept | {event.order})
