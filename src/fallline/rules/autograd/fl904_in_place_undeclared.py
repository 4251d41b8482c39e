"""FL904: an input is changed in place without ctx.mark_dirty."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.functions import AutogradFunction, Method, functions_in, own_nodes
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import is_name

# What gives another name for the same memory; everything else makes a new tensor, or may.
_VIEWS = frozenset(
    {
        "view",
        "detach",
        "unsqueeze",
        "squeeze",
        "transpose",
        "permute",
        "t",
        "expand",
        "view_as",
        "narrow",
        "select",
    }
)
_NOT_IN_PLACE = frozenset({"requires_grad_", "retain_grad_", "share_memory_", "pin_memory_"})


class InPlaceUndeclared(Rule):
    code = "FL904"
    name = "in-place-undeclared"
    severity = Severity.ERROR
    what = "The forward of an autograd Function changes an input in place without ctx.mark_dirty."
    why = """\
The caller's tensor then holds the new values with the old history: what is computed from it later gets a wrong gradient.

For `z = 2 * w`, an undeclared `z.mul_(3)` in forward and the loss `z * z`, the gradient is 24 where it should be 72. A parameter that is passed in directly is overwritten; with
mark_dirty torch refuses."""
    instead = """\
Declare it, or work on a copy.

- `ctx.mark_dirty(x)` and return `x`
- `y = x.clone()`, then change `y`"""
    references = (
        "https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd",
    )
    tokens = (b"Function",)
    wrong = (
        """\
import torch


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)  # FL904
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


Relu.apply(torch.ones(3, requires_grad=True) * 2).sum().backward()
""",
        """\
import torch


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, offset: float):
        x += offset  # FL904
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


Shift.apply(torch.ones(3, requires_grad=True) * 2, 1.0).sum().backward()
""",
        """\
import torch
from torch.autograd import Function


class Zero(Function):
    @staticmethod
    def forward(ctx, x, index):
        flat = x.view(-1)
        flat[index] = 0  # FL904
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


Zero.apply(torch.ones(3, requires_grad=True) * 2, 1).sum().backward()
""",
    )
    right = (
        """\
import torch


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


Relu.apply(torch.ones(3, requires_grad=True) * 2).sum().backward()
""",
        """\
import torch


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, offset: float):
        x = x.clone()
        x += offset
        offset += 1
        x[0] = 0
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


Shift.apply(torch.ones(3, requires_grad=True), 1.0).sum().backward()
""",
        """\
import torch


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        out = torch.empty_like(x)
        out.copy_(x)
        out.mul_(levels).round_().div_(levels)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        grad = grad_output.clone()
        grad[grad > 1] = 1
        return grad, None


Quantize.apply(torch.ones(3, requires_grad=True), 4).sum().backward()
""",
        """\
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        x.mul_(factor)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, factor = inputs
        ctx.mark_dirty(x)
        ctx.factor = factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


Scale.apply(torch.ones(3, requires_grad=True) * 2, 3.0).sum().backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for function in functions_in(module):
            # what is marked dirty, of several inputs, is left to the author
            if function.forward is None or function.calls("mark_dirty"):
                continue
            told: set[str] = set()
            for node, name in _changes(function, function.forward):
                if name in told:
                    continue
                told.add(name)
                yield self.finding(
                    module.location(node),
                    f"forward changes its input `{name}` in place without `ctx.mark_dirty`, so what is computed from it later gets a wrong gradient. Call `ctx.mark_dirty({name})`, or work on a clone",
                    # nobody sees it where the input is a value of the moment, as logits are
                    severity=None if _returns(function.forward, name) else Severity.INFO,
                )


def _returns(forward: Method, name: str) -> bool:
    """The changed input is handed on as the result, or as one of them."""
    for node in own_nodes(forward):
        match node:
            case ast.Return(ast.Tuple(results)):
                pass
            case ast.Return(ast.expr() as result):
                results = [result]
            case _:
                continue
        if any(is_name(r, name) for r in results):
            return True
    return False


def _changes(function: AutogradFunction, forward: Method) -> Iterator[tuple[ast.AST, str]]:
    """In-place changes of inputs, in order; a name bound to something new is not an input any more."""
    # running statistics are buffers: they take no gradient and are updated in place on purpose
    alias = {
        name: name
        for name in function.tensors()
        if not name.startswith(("running", "num_batches", "out"))
    }
    for node in own_nodes(forward):
        match node:
            case ast.Assign(targets, value):
                for target in targets:
                    base = _subscripted(target)
                    if base in alias:
                        yield node, alias[base]
                    elif isinstance(target, ast.Name):
                        same = _aliased(value)
                        if same in alias and not (
                            isinstance(value, ast.Name) and same == target.id
                        ):
                            alias[target.id] = alias[same]
                        else:
                            alias.pop(target.id, None)
            case ast.AugAssign(target):
                name = target.id if isinstance(target, ast.Name) else _subscripted(target)
                if name in alias:
                    yield node, alias[name]
            case ast.Call():
                name = _changed_by(node)
                if name in alias:
                    yield node, alias[name]


def _subscripted(target: ast.expr) -> str:
    """`x` of `x[...]` and `x.data[...]`."""
    return _aliased(target.value) if isinstance(target, ast.Subscript) else ""


def _aliased(value: ast.expr) -> str:
    """The name an expression shares its memory with; '' where it is new or not known."""
    match value:
        case ast.Name(name):
            return name
        case ast.Attribute(of, "data" | "T" | "mT"):
            return _aliased(of)
        case ast.Call(ast.Attribute(of, view)) if view in _VIEWS:
            return _aliased(of)
    return ""


def _changed_by(call: ast.Call) -> str:
    """The name that `x.add_(1)`, `x.view(-1).mul_(2)`, `F.relu_(x)` or `op(..., out=x)` changes."""
    for keyword in call.keywords:
        if keyword.arg == "out":
            return _aliased(keyword.value)
    if not isinstance(call.func, ast.Attribute):
        return ""
    name = call.func.attr
    inplace = any(
        k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )
    if inplace and call.args:
        return _aliased(call.args[0])
    if not name.endswith("_") or name.endswith("__") or name in _NOT_IN_PLACE:
        return ""
    here = call.func.value
    while (
        isinstance(here, ast.Call)
        and isinstance(here.func, ast.Attribute)
        and here.func.attr.endswith("_")
    ):
        here = here.func.value  # x.add_(1).mul_(2)
    return _aliased(here)
