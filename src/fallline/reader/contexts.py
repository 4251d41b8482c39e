"""`with` statements and decorators: no_grad, autocast, no_sync, accumulate, detect_anomaly."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fallline.reader.evaluate import evaluate
from fallline.reader.machine import Frame, Machine
from fallline.reader.values import NONE, Context, Function, Thing, Unknown, Value

__all__ = ["decorated", "enter", "entered_all", "generator_contexts"]


@contextmanager
def entered_all(machine: Machine, node: ast.With | ast.AsyncWith) -> Iterator[None]:
    """Everything that a with statement opens."""
    from fallline.reader.statements import assign_to

    with ExitStack() as stack:
        for item in node.items:
            value = machine.settled(evaluate(machine, item.context_expr))
            enter(machine, stack, value, item.context_expr)
            if item.optional_vars is not None:
                named: Value = value if isinstance(value, Thing) else Unknown()
                assign_to(machine, item.optional_vars, named, item.optional_vars)
        yield


def enter(machine: Machine, stack: ExitStack, value: Value, node: ast.AST) -> None:
    """Open one context until the stack closes."""
    if isinstance(value, Context):
        stack.enter_context(_open(machine, value, node))
    elif isinstance(value, Function):
        for inner in generator_contexts(machine, value):
            stack.enter_context(_open(machine, inner, node))


@contextmanager
def _open(machine: Machine, context: Context, node: ast.AST) -> Iterator[None]:
    kind = context.kind
    if kind == "grad":
        before, machine.recording = machine.recording, bool(context.value)
        try:
            yield
        finally:
            machine.recording = before
    elif kind == "autocast":
        machine.autocast.append(context.value)
        try:
            yield
        finally:
            machine.autocast.pop()
    elif kind == "no_sync" and context.thing is not None:
        machine.unsynced.append(context.thing.id)
        try:
            yield
        finally:
            if context.thing.id in machine.unsynced:
                machine.unsynced.remove(context.thing.id)
    elif kind == "anomaly":
        before_anomaly, machine.anomaly = machine.anomaly, machine.place(node)
        try:
            yield
        finally:
            machine.anomaly = before_anomaly
    elif kind == "accumulate" and context.thing is not None:
        from fallline.reader import frameworks

        with frameworks.accumulating(machine, context.thing):
            yield
    else:
        yield


def decorated(machine: Machine, function: Function, stack: ExitStack) -> None:
    """Contexts that a function's decorators put around it."""
    node = function.node
    if isinstance(node, ast.Lambda):
        return
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = function.module.resolve(target) or ""
        if name in {
            "torch.no_grad",
            "torch.inference_mode",
            "torch.autograd.no_grad",
            "torch.set_grad_enabled",
            "torch.enable_grad",
        } or name.endswith("autocast"):
            with machine.entered(machine.module_frame(function.module)):
                value = (
                    evaluate(machine, decorator)
                    if isinstance(decorator, ast.Call)
                    else Context("grad", False)
                )
            enter(machine, stack, value, decorator)
        elif _turns_off_grad(function, target):
            enter(machine, stack, Context("grad", False), decorator)


def _turns_off_grad(function: Function, target: ast.expr) -> bool:
    """A decorator of the project that puts no_grad or inference_mode around."""
    module = function.module
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
    return body is not None and any(
        isinstance(n, ast.Attribute) and n.attr in {"no_grad", "inference_mode"}
        for n in ast.walk(body)
    )


def generator_contexts(machine: Machine, function: Function) -> list[Context]:
    """What a `@contextmanager` function of the project opens around its yield."""
    found: list[Context] = []
    node = function.node
    if isinstance(node, ast.Lambda):
        return found
    for inner in ast.walk(node):
        if isinstance(inner, ast.With) and any(isinstance(n, ast.Yield) for n in ast.walk(inner)):
            frame = Frame(
                function.module,
                node.name,
                function.scope or machine.module_frame(function.module),
                function.me,
            )
            for argument in node.args.args:
                frame.names[argument.arg] = Unknown(argument.arg)
            with machine.entered(frame):
                for item in inner.items:
                    value = evaluate(machine, item.context_expr)
                    if isinstance(value, Context):
                        found.append(value)
    return found


_ = NONE
