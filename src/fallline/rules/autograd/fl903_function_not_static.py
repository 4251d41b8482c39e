"""FL903: forward or backward of an autograd Function that is not static."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.functions import AutogradFunction, Method, functions_in, head
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import is_name

_STATIC = ("forward", "backward", "setup_context", "vjp", "jvp", "vmap")


class FunctionNotStatic(Rule):
    code = "FL903"
    name = "function-not-static"
    severity = Severity.ERROR
    what = "forward, backward, setup_context or jvp of an autograd Function is not a static method."
    why = """\
An autograd Function is never instantiated: apply() calls these methods on the class and passes ctx itself.

Written with self and called on an instance, torch raises "Legacy autograd function with non-static forward method". Without self, the class works only as long as
every call goes through the class; called on an instance, the instance lands in ctx."""
    instead = """\
Decorate each of them with @staticmethod and call the function with apply.

`@staticmethod` above `def forward(ctx, x)`, and `MyFunction.apply(x)`"""
    fix_safety = "Safe where the first argument is not self and the class is not instantiated."
    references = (
        "https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd",
    )
    tokens = (b"Function",)
    wrong = (
        """\
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    def backward(ctx, grad_output):  # FL903
        return grad_output * 2


Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch
from torch.autograd import Function


class Reverse(Function):
    def forward(self, x):  # FL903
        return x.view_as(x)

    def backward(self, grad_output):
        return -grad_output


try:
    Reverse()(torch.ones(3, requires_grad=True)).sum().backward()
except RuntimeError as error:
    print(error)
""",
        """\
import torch


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(x, low):
        return x.clamp(min=low)

    def setup_context(ctx, inputs, output):  # FL903
        ctx.save_for_backward(inputs[0])
        ctx.low = inputs[1]

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > ctx.low), None


Clip.apply(torch.ones(3, requires_grad=True), 0.0).sum().backward()
""",
    )
    right = (
        """\
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2


Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch
from torch.autograd.function import once_differentiable


class Double(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad_output):
        return grad_output * 2


Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch


class Function:
    def forward(self, x):
        return x

    def backward(self, gradient):
        return gradient


class Layer(torch.nn.Module):
    def forward(self, x):
        return x * 2


print(Layer()(torch.ones(3)), Function().forward(1))
""",
        """\
import torch


class Double(torch.autograd.Function):
    def forward(ctx, x):
        return x * 2

    def backward(ctx, grad_output):
        return grad_output * 2

    forward = staticmethod(forward)
    backward = staticmethod(backward)


Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for function in functions_in(module):
            methods = _not_static(module, function)
            if methods:
                names = " and ".join(m.name for m in methods)
                several = len(methods) > 1
                yield self.finding(
                    head(module, methods[0]),
                    f"{names} of this autograd Function {'are not static methods' if several else 'is not a static method'}, so torch raises as soon as it is used. "
                    f"Decorate {'them' if several else 'it'} with `@staticmethod` and call `apply`",
                    severity=Severity.INFO if _plain_method(module, function) else None,
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        for function in functions_in(module):
            methods = _not_static(module, function)
            if not methods or methods[0].lineno != finding.at.line:
                continue
            names_itself = any(not m.args.args or m.args.args[0].arg == "self" for m in methods)
            if names_itself and (
                "__init__" in function.methods or _instantiated(module, function.node.name)
            ):
                return None
            return Fix(
                "Make them static" if len(methods) > 1 else "Make it static",
                tuple(_decorated(module, method) for method in methods),
            )
        return None


def _not_static(module: Module, function: AutogradFunction) -> list[Method]:
    """The methods of one Function that should be static and are not."""
    later = _made_static(function.node)
    found = (function.methods.get(name) for name in _STATIC if name not in later)
    return [m for m in found if m is not None and not _is_static(module, m)]


def _decorated(module: Module, method: Method) -> Edit:
    anchor = method.decorator_list[0].lineno if method.decorator_list else method.lineno
    indent = Editor(module).indent(method)
    return Editor(module).insert(anchor, 1, f"{indent}@staticmethod\n")


def _plain_method(module: Module, function: AutogradFunction) -> bool:
    """It is used as `Name().forward(x)`: a method like any other, which autograd follows."""
    text = module.source.text
    if "backward" not in function.methods and ".forward(" in text:
        return True
    name = re.escape(function.node.name)
    return (
        re.search(rf"\b{name}\([^()\n]*\)\.forward\(", text) is not None
        and re.search(rf"\b{name}\([^()\n]*\)\(|\b{name}\.apply\b", text) is None
    )


def _is_static(module: Module, method: Method) -> bool:
    return any(
        (isinstance(d, ast.Name) and d.id in {"staticmethod", "classmethod"})
        or (isinstance(d, ast.Attribute) and d.attr == "staticmethod")
        for d in method.decorator_list
    )


def _made_static(node: ast.ClassDef) -> set[str]:
    """`forward = staticmethod(forward)` in the class body."""
    return {
        t.id
        for s in node.body
        if isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Name)
        and s.value.func.id == "staticmethod"
        for t in s.targets
        if isinstance(t, ast.Name)
    }


def _instantiated(module: Module, name: str) -> bool:
    return any(is_name(c.func, name) for c in module.all(ast.Call))
