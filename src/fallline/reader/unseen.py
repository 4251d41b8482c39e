"""A loss that comes out of a call nobody can see into: what a reader of this one function would take it for."""

from __future__ import annotations

import ast
import re

from fallline.api.call import Call
from fallline.api.values import Tensor
from fallline.events import UNSEEN_LOSS
from fallline.reader.machine import Machine
from fallline.syntax import Module
from fallline.syntax.nodes import written

__all__ = ["unseen_loss"]

_SAYS_LOSS = re.compile(r"(?i)(^|_)loss(es)?$")
_COUNTS = re.compile(r"(?i)accum|micro|grad_steps|num_items")


def unseen_loss(machine: Machine, call: Call) -> Tensor:
    """`result.loss` of `result = task.train_step(batch)`, made in the loop that calls its backward: the mean of its batch, presumably."""
    loss = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    maker = _maker(machine.frame.module, loss) if loss is not None else None
    if maker is None or _COUNTS.search(written(maker)):
        return Tensor(None, divided=None)
    presumed = f"`{written(maker.func)}` {UNSEEN_LOSS}"
    return Tensor(None, reduction="mean", divided=False, presumed=presumed)


def _maker(module: Module, loss: ast.expr) -> ast.Call | None:
    """The call whose result this is or has under the name of a loss; its name is bound nowhere else in the function."""
    match loss:
        case ast.Name(name) if _SAYS_LOSS.search(name):
            source = loss
        case ast.Attribute(ast.Name() as source, name) if _SAYS_LOSS.search(name):
            pass
        case ast.Subscript(ast.Name() as source, ast.Constant(str(name))) if _SAYS_LOSS.search(
            name
        ):
            pass
        case _:
            return None
    bound = module.bindings(source.id, module.scope(source))
    bound = [b for b in bound if not _averages(module, b, source.id)]
    if len(bound) != 1 or _changed(module, loss):
        return None
    target = bound[0]
    up = module.parent(target)
    statement = module.parent(up) if isinstance(up, ast.Tuple) else up
    match statement:
        case ast.Assign(value=ast.Call(ast.Attribute()) as made):
            loops = (module.enclosing(node, ast.For, ast.While) for node in (statement, loss))
            first, second = loops
            return made if first is not None and first is second else None
    return None


def _averages(module: Module, binding: ast.AST, name: str) -> bool:
    """`loss = loss.mean()`: over what the call gave, and over nothing else."""
    match module.parent(binding):
        case ast.Assign([_], ast.Call(ast.Attribute(ast.Name(of), "mean" | "float"), [])):
            return of == name
    return False


def _changed(module: Module, loss: ast.expr) -> bool:
    """`result.loss /= k`."""
    text, scope = written(loss), module.scope(loss)
    targets = [t for a in module.all(ast.Assign) for t in a.targets]
    targets += [a.target for a in module.all(ast.AugAssign)]
    return not isinstance(loss, ast.Name) and any(
        module.scope(target) is scope and written(target) == text for target in targets
    )
