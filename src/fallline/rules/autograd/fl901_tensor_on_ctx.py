"""FL901: a tensor kept as an attribute of ctx."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in
from fallline.flow.functions import AutogradFunction, Method, functions_in, own_nodes
from fallline.rule import Rule
from fallline.syntax import Module


class TensorOnCtx(Rule):
    code = "FL901"
    name = "tensor-on-ctx"
    severity = Severity.WARNING
    what = "An autograd Function stores an input or output as an attribute of ctx."
    why = """\
If the tensor is changed in place before backward, an attribute silently gives a wrong gradient; a saved tensor raises.

An output kept on ctx also makes a reference cycle (output, graph node, ctx, output): its memory is freed only when the garbage collector runs. And saved-tensor hooks, with which activations are offloaded or checkpointed, see only what was saved."""
    instead = """\
Save tensors with ctx.save_for_backward and read them from ctx.saved_tensors.

- inputs and outputs: `ctx.save_for_backward(x, weight)`, then `x, weight = ctx.saved_tensors` in backward
- numbers, shapes and flags belong on ctx: `ctx.stride = stride`"""
    references = (
        "https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd",
    )
    tokens = (b"Function",)
    wrong = (
        """\
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x  # FL901
        return x.pow(2)

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.x * grad_output


Square.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch
from torch.autograd import Function


class Exp(Function):
    @staticmethod
    def forward(ctx, inputs: torch.Tensor, scale: float):
        result = torch.exp(inputs * scale)
        ctx.scale = scale
        ctx.result = result  # FL901
        return result

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.result * ctx.scale, None


Exp.apply(torch.ones(3, requires_grad=True), 2.0).sum().backward()
""",
        """\
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, exponent):
        return torch.mul(x, weight.clamp(min=0)) ** exponent

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, exponent = inputs
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        ctx.weight = weight  # FL901

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * ctx.weight, (grad_output * x).sum(), None


Scale.apply(torch.ones(3, requires_grad=True), torch.tensor(1.0, requires_grad=True), 1).sum().backward()
""",
    )
    right = (
        """\
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


Square.apply(torch.ones(3, requires_grad=True)).sum().backward()
""",
        """\
import torch


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        ctx.shape = x.shape
        ctx.needs = x.requires_grad
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.alpha * grad_output, None


GradientReversal.apply(torch.ones(3, requires_grad=True), 0.5).sum().backward()
""",
        """\
import torch


class Stepwise(torch.autograd.Function):
    @staticmethod
    def forward(x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, levels = inputs
        ctx.levels = levels
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


Stepwise.apply(torch.ones(3, requires_grad=True), 4).sum().backward()
""",
        """\
import torch


class Cache:
    def store(ctx, x):
        ctx.x = x
        return x.pow(2)


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, threshold=0.5):
        ctx.threshold = threshold
        ctx.kept = int((x > threshold).sum())
        ctx.save_for_backward(x)
        return x * (x > threshold)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > ctx.threshold), None


Masked.apply(torch.ones(3, requires_grad=True), 0.5).sum().backward()
""",
        """\
import torch
import torch.distributed as dist


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        if group.size() > 1:
            dist.all_reduce(x, group=group)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for function in functions_in(module):
            for name in ("forward", "setup_context"):
                method = function.methods.get(name)
                ctx = function.context(method) if method is not None else None
                if method is None or ctx is None or function.forward is None:
                    continue
                kept = _inputs(function, method) | _outputs(function, method)
                for target, value in _stored(method, ctx):
                    if (
                        isinstance(value, ast.Name)
                        and value.id in kept
                        and not _no_tensor(module, value)
                    ):
                        yield self.finding(
                            module.location(target),
                            f"The tensor `{value.id}` is kept as an attribute of {ctx}, so a later in-place change gives a wrong gradient without an error. Use `{ctx}.save_for_backward`",
                        )


def _no_tensor(module: Module, value: ast.Name) -> bool:
    """Made a list or a number on some way here; or in the branch of `if torch.is_tensor(x):` that is for numbers."""
    bound = module.bindings(value.id, module.scope(value))
    for binding in bound:
        match module.parent(binding):
            case ast.Assign(value=ast.Call() as made) if last_name(made) in _PLAIN:
                return True
            case ast.Assign(value=ast.List() | ast.Tuple() | ast.ListComp() | ast.Constant()):
                return True
    child: ast.AST = value
    for up in module.parents(value):
        match up:
            case ast.If(test) if value.id in names_in(test) and _ASKS.search(module.segment(test)):
                return child in up.orelse or isinstance(test, ast.UnaryOp)
            case ast.FunctionDef():
                return False
        child = up
    return False


_ASKS = re.compile(r"is_tensor|isinstance")
_PLAIN = frozenset("tolist item len int float bool list tuple dict size numel range".split())


def _stored(method: Method, ctx: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`ctx.a = x` and `ctx.a, ctx.b = x, y`."""
    for node in (n for n in own_nodes(method) if isinstance(n, ast.Assign)):
        for target in node.targets:
            match target, node.value:
                case ast.Tuple(places), ast.Tuple(values):
                    pairs = list(zip(places, values, strict=False))
                case _:
                    pairs = [(target, node.value)]
            for place, value in pairs:
                match place:
                    case ast.Attribute(ast.Name(owner)) if owner == ctx:
                        yield place, value


def _inputs(function: AutogradFunction, method: Method) -> set[str]:
    """Names in this method that stand for tensors forward was given."""
    tensors = function.tensors()
    if method.name == "forward":
        return tensors - _rebound(method)
    given = [a.arg for a in [*method.args.posonlyargs, *method.args.args]][1:2]
    order = [a.arg for a in function.inputs()]
    names: set[str] = set()
    for node in own_nodes(method):
        match node:
            case ast.Assign([ast.Tuple(elts), *_], ast.Name(source)) if [source] == given:
                if len(elts) == len(order):
                    pairs = zip(elts, order, strict=True)
                    names |= {t.id for t, o in pairs if isinstance(t, ast.Name) and o in tensors}
    return names


def _rebound(method: Method) -> set[str]:
    return {
        n.id for n in own_nodes(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _outputs(function: AutogradFunction, method: Method) -> set[str]:
    """Names in this method that stand for what forward returns."""
    if method.name == "setup_context":
        given = [*method.args.posonlyargs, *method.args.args]
        return {given[2].arg} if len(given) > 2 and _returns_one(function) else set()
    returned: set[str] = set()
    for node in own_nodes(method):
        if isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            returned |= {v.id for v in values if isinstance(v, ast.Name)}
    return returned & (_made_by_operations(method) | function.tensors())


def _returns_one(function: AutogradFunction) -> bool:
    assert function.forward is not None
    returns = [n for n in own_nodes(function.forward) if isinstance(n, ast.Return)]
    return bool(returns) and all(
        r.value is not None and not isinstance(r.value, ast.Tuple) for r in returns
    )


def _made_by_operations(method: Method) -> set[str]:
    """Names assigned the result of a computation: what a returned name must be to count as an output tensor."""
    return {
        t.id
        for n in own_nodes(method)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call | ast.BinOp | ast.UnaryOp | ast.Subscript)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
