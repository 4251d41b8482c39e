"""`with` statements and decorators: no_grad, autocast, no_sync, accumulate, detect_anomaly."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fallline.api import contexts
from fallline.api.values import Context, Function, Thing, Unknown, Value
from fallline.flow.calls import last_name
from fallline.flow.recording import OFF
from fallline.reader.assign import assign_to
from fallline.reader.decide import truth
from fallline.reader.machine import Machine
from fallline.reader.state import Frame
from fallline.syntax import Module
from fallline.syntax.module import Function as Definition
from fallline.syntax.nodes import below
from fallline.syntax.once import once

__all__ = ["decorated", "entered_all", "grad_decorators"]


@contextmanager
def entered_all(machine: Machine, node: ast.With | ast.AsyncWith) -> Iterator[None]:
    """Everything that a with statement opens."""
    with ExitStack() as stack:
        for item in node.items:
            for opened in _meant(item.context_expr):
                value = machine.settled(machine.evaluate(opened))
                _enter(machine, stack, value, opened)
            if item.optional_vars is not None:
                assign_to(machine, item.optional_vars, _named(value), item.optional_vars)
        yield


def _meant(opened: ast.expr) -> list[ast.expr]:
    """`with no_grad() and autocast():` is read as it was meant: that the first is not entered is reported there, once."""
    match opened:
        case ast.BoolOp(ast.And(), parts) if all(isinstance(p, ast.Call) for p in parts):
            return parts
    return [opened]


def _named(value: Value) -> Value:
    """What `as` names."""
    match value:
        case Thing():
            return value
        case Context(gives=Value() as given):
            return given
    return Unknown()


def _enter(machine: Machine, stack: ExitStack, value: Value, node: ast.AST) -> None:
    """Open one context until the stack closes."""
    opened: list[Context] = []
    if isinstance(value, Context):
        opened = [value]
    elif isinstance(value, Function):
        opened = _generator_contexts(machine, value)
    elif last_name(node) in OFF:
        # torch by another name: `self.torch.no_grad()`, `backend["torch"].no_grad()`
        opened = [contexts.grad(False)]
    for context in opened:
        if context.opens is not None:
            stack.enter_context(context.opens(machine, node))


_OF_TORCH = frozenset(
    {
        "torch.no_grad",
        "torch.inference_mode",
        "torch.autograd.no_grad",
        "torch.set_grad_enabled",
        "torch.enable_grad",
    }
)


@once
def grad_decorators(module: Module, node: Definition) -> list[tuple[ast.expr, bool]]:
    """The decorators of a function that change how it computes, and whether torch has them. Every call asks."""
    known: list[tuple[ast.expr, bool]] = []
    for decorator in () if isinstance(node, ast.Lambda) else node.decorator_list:
        for each in _branches(decorator):
            target = each.func if isinstance(each, ast.Call) else each
            name = module.resolve(target) or ""
            if name in _OF_TORCH or name.endswith("autocast"):
                known.append((each, True))
            elif _turns_off_grad(module, target):
                known.append((each, False))
    return known


def decorated(
    machine: Machine,
    function: Function,
    decorators: list[tuple[ast.expr, bool]],
    stack: ExitStack,
) -> None:
    """Contexts that a function's decorators put around it."""
    for decorator, of_torch in decorators:
        value: Value = contexts.grad(False)
        if of_torch and isinstance(decorator, ast.Call):
            with machine.entered(machine.module_frame(function.module)):
                value = machine.evaluate(decorator)
        _enter(machine, stack, value, decorator)


def _branches(decorator: ast.expr) -> list[ast.expr]:
    """`@torch.no_grad() if available else plain`: with torch it is the one that torch knows."""
    match decorator:
        case ast.IfExp(_, body, orelse):
            return [body, orelse]
    return [decorator]


def _turns_off_grad(module: Module, target: ast.expr) -> bool:
    """A decorator of the project that puts no_grad or inference_mode around."""
    if isinstance(target, ast.Name) and target.id in module.functions:
        body: ast.AST | None = module.functions[target.id]
    else:
        name = module.resolve(target)
        found = (
            module.project.find(name, module)
            if name is not None and module.project is not None
            else None
        )
        body = found[1] if found is not None else None
    return body is not None and any(n.attr in OFF for n in below(body, ast.Attribute))


def _taken(machine: Machine, module: Module, inner: ast.With) -> bool:
    """`if last: yield` and `else: with model.no_sync(): yield`: whether this is the arm that is gone through."""
    child: ast.AST = inner
    for up in module.parents(inner):
        match up:
            case ast.FunctionDef():
                return True
            case ast.If(test, body):
                if truth(machine, test)[0] is not (child in body):
                    return False
        child = up
    return True


def _generator_contexts(machine: Machine, function: Function) -> list[Context]:
    """What a `@contextmanager` function of the project opens around its yield."""
    found: list[Context] = []
    node = function.node
    if isinstance(node, ast.Lambda):
        return found
    for inner in below(node, ast.With):
        if below(inner, ast.Yield):
            frame = function.entered
            if frame is None:
                scope = function.scope or machine.module_frame(function.module)
                frame = Frame(function.module, node.name, scope, function.me)
                for argument in node.args.args:
                    frame.names[argument.arg] = Unknown(argument.arg)
            with machine.entered(frame):
                if not _taken(machine, function.module, inner):
                    continue
                for item in inner.items:
                    value = machine.evaluate(item.context_expr)
                    if isinstance(value, Context):
                        found.append(value)
    return found
