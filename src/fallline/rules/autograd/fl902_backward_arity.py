"""FL902: backward returns a different number of gradients than forward has inputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import names_in
from fallline.flow.functions import Method, functions_in, own_nodes
from fallline.flow.values import siblings_before
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import is_name

# Methods of a tensor that give back one tensor: `grad_output.clone()` is one gradient, not a tuple.
_ONE_TENSOR = frozenset(
    """clone mul add sub div neg clamp view reshape t transpose permute sum mean matmul mm contiguous detach expand
    expand_as masked_fill float half to type_as view_as unsqueeze squeeze pow sign exp""".split()
)


class BackwardArity(Rule):
    code = "FL902"
    name = "backward-arity"
    severity = Severity.ERROR
    what = "backward returns fewer gradients than forward has inputs, or more that are not None."
    why = """\
The first backward pass raises "returned an incorrect number of gradients".

backward must return a value for every input of forward, also for inputs that are not tensors: None is their gradient. Surplus Nones are
ignored; a surplus gradient is an error."""
    instead = """\
Return one value for each input of forward (ctx not counted), None for those without a gradient.

`return grad_input, grad_weight, None` for `forward(ctx, x, weight, stride)`"""
    references = (
        "https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd",
    )
    tokens = (b"Function",)
    wrong = (
        """\
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor  # FL902


try:
    Scale.apply(torch.ones(3, requires_grad=True), 2.0).sum().backward()
except RuntimeError as error:
    print(error)
""",
        """\
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_output @ weight
        grad_weight = grad_output.t() @ x
        return grad_x, grad_weight  # FL902


x, weight, bias = torch.ones(2, 3), torch.ones(4, 3, requires_grad=True), torch.ones(4, requires_grad=True)
try:
    Linear.apply(x, weight, bias).sum().backward()
except RuntimeError as error:
    print(error)
""",
        """\
import torch


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels=4):
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output  # FL902


try:
    Round.apply(torch.ones(3, requires_grad=True), 8).sum().backward()
except RuntimeError as error:
    print(error)
""",
        """\
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        grads = (grad_output * 2, grad_output)
        return grads  # FL902


try:
    Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
except RuntimeError as error:
    print(error)
""",
    )
    right = (
        """\
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


Scale.apply(torch.ones(3, requires_grad=True), 2.0).sum().backward()
""",
        """\
import torch


class SumAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors):
        ctx.count = len(tensors)
        return sum(tensors)

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output,) * ctx.count


SumAll.apply(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None, None  # surplus Nones are ignored


Straight.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch


class Optional(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor  # apply is called with one argument


Optional.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch


def gradients_of(ctx, grad_output):
    return grad_output * 2, None, None


class Indirect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        return x.clamp(low, high) * 2

    @staticmethod
    def backward(ctx, grad_output):
        if not ctx.needs_input_grad[0]:
            return None, None, None
        grads = gradients_of(ctx, grad_output)
        return grads


Indirect.apply(torch.ones(3, requires_grad=True), 0.0, 2.0).sum().backward()
""",
        """\
import torch


class NoSecondPass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("only for inference")
        return grad
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for function in functions_in(module):
            backward = function.methods.get("backward") or function.methods.get("vjp")
            if function.forward is None or backward is None or function.variadic:
                continue
            if function.calls("mark_non_differentiable"):
                continue  # backward never runs
            most = len(function.inputs())
            least = min(
                _applied(module, function.node.name),
                default=most - len(function.forward.args.defaults),
            )
            for node in own_nodes(backward):
                if not isinstance(node, ast.Return) or _never_runs(module, node):
                    continue
                returned = _gradients(backward, node.value)
                if returned is None:
                    continue
                extra = [g for g in returned[most:] if module.constant(g) is not None]
                if len(returned) < least or extra:
                    yield self.finding(
                        module.location(node),
                        f"backward returns {_count(len(returned), 'gradient')}, but forward has {_count(most, 'input')}, so {'it raises if it ever runs' if _nothing(returned) else 'the first backward pass raises'}. Return one value for each input, None where there is no gradient",
                        # who returns nothing but None expects no gradient: mostly an operation on whole numbers, whose backward never runs
                        severity=Severity.INFO if _nothing(returned) else None,
                        returned=len(returned),
                        inputs=most,
                    )


def _nothing(returned: list[ast.expr]) -> bool:
    return all(isinstance(g, ast.Constant) and g.value is None for g in returned)


def _never_runs(module: Module, node: ast.stmt) -> bool:
    """After a raise or a return of the same block: a backward that is refused, with its old code left below."""
    here: ast.AST = node
    for up in module.parents(node):
        if isinstance(here, ast.stmt) and any(
            isinstance(s, ast.Raise | ast.Return) for s in siblings_before(up, here)
        ):
            return True
        if isinstance(up, ast.FunctionDef):
            return False
        here = up
    return False


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _gradients(method: Method, value: ast.expr | None) -> list[ast.expr] | None:
    """The gradients a return statement gives; None where it may be a tuple that is made elsewhere."""
    match value:
        case None | ast.Constant(None):
            return (
                None  # a backward that gives up is a choice ("not differentiable"), and never runs
            )
        case ast.Tuple(elts):
            return None if any(isinstance(e, ast.Starred) for e in elts) else list(elts)
        case ast.Name(name):
            match _assigned(method, name):
                case [ast.Tuple() as made]:
                    return _gradients(method, made)
    return [value] if _one_tensor(method, value) else None


def _applied(module: Module, name: str) -> list[int]:
    """How many inputs the calls of apply in this file give."""
    found = []
    for call in module.method_calls("apply"):
        match call.func:
            case ast.Attribute(ast.Name(owner)) if owner == name and not module.has_star(call):
                found.append(len(call.args))
    return found


def _assigned(method: Method, name: str) -> list[ast.expr]:
    """Every value a name is assigned in a method; nothing where one of them cannot be seen."""
    stores, values = 0, []
    for node in own_nodes(method):
        match node:
            case ast.Name(written, ast.Store()) if written == name:
                stores += 1
            case ast.Assign(targets, value):
                values += [value for t in targets if is_name(t, name)]
    return values if len(values) == stores else []


def _one_tensor(method: Method, value: ast.expr, depth: int = 0) -> bool:
    """An expression that is surely one tensor (or None) and not a tuple."""
    if depth > 6:
        return False
    match value:
        case ast.Constant() | ast.Attribute() | ast.UnaryOp(ast.USub()) | ast.Compare():
            return True
        case ast.Name(name):
            assigned = _assigned(method, name)
            if not assigned and name not in {a.arg for a in method.args.args[1:]}:
                return _from_saved(method, name)
            return all(_one_tensor(method, a, depth + 1) for a in assigned if not _refers(a, name))
        case ast.BinOp(left, _, right):
            # `(grad,) * n` and `a + b` of tuples are tuples
            return all(_one_tensor(method, side, depth + 1) for side in (left, right))
        case ast.Call(ast.Attribute(of, name)):
            return name in _ONE_TENSOR and _one_tensor(method, of, depth + 1)
    return False


def _refers(node: ast.expr, name: str) -> bool:
    """`grad = grad * 2` says nothing new about what grad is."""
    return isinstance(node, ast.BinOp | ast.Call) and name in names_in(node)


def _from_saved(method: Method, name: str) -> bool:
    """`x, weight = ctx.saved_tensors`."""
    for node in own_nodes(method):
        match node:
            case ast.Assign([*_, ast.Tuple(elts)], ast.Attribute(attr="saved_tensors")):
                if any(is_name(e, name) for e in elts):
                    return True
    return False
