"""FL603: a square root of a value that can be exactly zero."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.algebra import DEAD_BRANCH, Range
from fallline.flow.calls import last_name, names_in, operand, operations, receiver, squared_base
from fallline.flow.gradients import begins_random, detached_later, takes_no_gradient
from fallline.flow.losses import in_loss, unguarded
from fallline.flow.modules import learns
from fallline.flow.places import in_training
from fallline.flow.ranges import range_of
from fallline.flow.reached import seen_to_train
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_HALVES = frozenset({0.5, -0.5})
_SUMS = frozenset({"sum", "mean"})
_MEAN_LOSSES = frozenset(
    {"mse_loss", "mseloss", "l1_loss", "l1loss", "smooth_l1_loss", "huber_loss"}
)
_KEEPS = frozenset({"view", "reshape", "squeeze", "unsqueeze", "float", "clamp", "clip", "relu"})
_GIVEN = re.compile(r"(^|_)(gt|targets?|labels?|true)($|_)")
_NOT_SAID = frozenset({"rand", "rand_like", "randn", "zeros", "target", "difference", "normalize"})


class SqrtAtZero(Rule):
    code = "FL603"
    name = "sqrt-at-zero"
    severity = Severity.WARNING
    what = "A gradient flows through the square root of a value that can be exactly zero."
    why = """\
The loss stays finite and every gradient becomes NaN: the slope of the square root at 0 is infinite, and infinity times 0 is NaN.

In `sqrt((a - b) ** 2)` one exact hit is enough. A clamp at 0 does not help, since 0 itself is the problem; nor does rounding ever make a square negative.
`torch.norm`, `torch.linalg.vector_norm` and `torch.cdist` are fine: they define the slope at 0 as 0. Under `create_graph=True` that holds only for
the first derivative: the second derivative of a norm at 0 is NaN."""
    instead = """\
Keep the argument above zero, or use the operation that knows about zero.

- `(a - b).abs()` for `sqrt((a - b) ** 2)`
- `torch.linalg.vector_norm(x, dim=-1)` for `sqrt((x ** 2).sum(-1))`
- `torch.sqrt(x + 1e-12)` or `x.clamp(min=1e-12).sqrt()`"""
    fix_safety = "Safe: the absolute value is the same number; a bound of 1e-12 changes the root by at most 1e-6."
    facts = ("sqrt-gradient-at-zero", "finite-loss-nan-gradient")
    tokens = (b"sqrt", b"0.5", b".5", b"create_graph")
    wrong = (
        """\
import torch


def distance_loss(pred, target):
    diff = pred - target
    return torch.sqrt(torch.clamp(diff ** 2, min=0)).mean()  # FL603


distance_loss(torch.zeros(3, requires_grad=True), torch.zeros(3)).backward()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.zeros(8, 4)
loss = torch.sqrt((model(inputs) - model(inputs)) ** 2).mean()  # FL603
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSELoss(nn.Module):
    def forward(self, pred, target):
        return F.mse_loss(pred, target) ** 0.5  # FL603


RMSELoss()(torch.zeros(3, requires_grad=True), torch.zeros(3)).backward()
""",
        """\
import torch
from torch import nn


class Magnitude(nn.Module):
    def forward(self, real, imag):
        return (real.pow(2) + imag.pow(2)).sqrt()  # FL603


Magnitude()(torch.zeros(3, requires_grad=True), torch.zeros(3)).sum().backward()
""",
        """\
import torch


def distance_loss(a, b):
    dx = a[:, 0] - b[:, 0]
    dy = a[:, 1] - b[:, 1]
    return torch.sqrt(dx**2 + dy**2).mean()  # FL603


distance_loss(torch.zeros(3, 2, requires_grad=True), torch.zeros(3, 2)).backward()
""",
        """\
import torch


def force_loss(positions, wanted):
    distance = torch.norm(positions[0] - positions[1])  # FL603
    energy = distance**3
    (forces,) = torch.autograd.grad(energy, positions, create_graph=True)
    return (forces - wanted).square().mean()


force_loss(torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3)).backward()
""",
    )
    right = (
        """\
import torch


def distance_loss(pred, target):
    return (pred - target).abs().mean() + torch.sqrt((pred - target) ** 2 + 1e-12).mean()


distance_loss(torch.zeros(3, requires_grad=True), torch.zeros(3)).backward()
""",
        """\
import torch


def triplet_loss(anchor, positive, negative):
    near = torch.norm(anchor - positive, dim=-1)
    far = torch.linalg.vector_norm(anchor - negative, dim=-1)
    return (near - far + 1.0).clamp(min=0).mean()


x = torch.zeros(2, 3, requires_grad=True)
triplet_loss(x, torch.zeros(2, 3), torch.ones(2, 3)).backward()
""",
        """\
import math

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = dim**-0.5
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.eps) / math.sqrt(2) * self.scale


RMSNorm(4)(torch.zeros(2, 4, requires_grad=True)).sum().backward()
""",
        # what is not a difference keeps the sum above zero: Charbonnier, pseudo-Huber
        """\
import torch


def huber_loss(pred, target, c):
    c = c.view(-1, 1)
    return (2 * c * (torch.sqrt((pred - target) ** 2 + c**2) - c)).mean()


huber_loss(torch.zeros(3, 2, requires_grad=True), torch.zeros(3, 2), torch.full((3,), 0.1)).backward()
""",
        # a buffer and a number: no gradient
        """\
import torch
from torch import nn


class Augment(nn.Module):
    def __init__(self, rotate=1):
        super().__init__()
        self.register_buffer("p", torch.ones([]))
        self.rotate = float(rotate)

    def forward(self, x):
        return x * (1 - torch.sqrt((1 - self.rotate * self.p).clamp(0, 1)))


Augment()(torch.zeros(2, 3, requires_grad=True)).sum().backward()
""",
        # a metric next to the loss
        """\
import torch


def sequence_loss(flow, target):
    loss = (flow - target).abs().mean()
    error = torch.sum((flow - target) ** 2, dim=1).sqrt()
    error = error.view(-1)
    return loss, {"error": error.mean().item(), "1px": (error < 1).float().mean().item()}


sequence_loss(torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3))[0].backward()
""",
        # coordinates: nothing is differentiated with respect to them
        """\
import torch
from torch import nn


class AddCoordinates(nn.Module):
    def forward(self, x):
        batch, _, height, width = x.shape
        xx = torch.arange(width, dtype=torch.float32).repeat(height, 1) / (width - 1)
        yy = torch.cat([torch.full((1, width), float(i)) for i in range(height)]) / (height - 1)
        xx = xx.to(x.device)
        radius = torch.sqrt(torch.pow(xx - 0.5, 2) + torch.pow(yy - 0.5, 2))
        return torch.cat([x, radius.expand(batch, 1, -1, -1)], dim=1)


AddCoordinates()(torch.zeros(2, 1, 3, 3, requires_grad=True)).sum().backward()
""",
        """\
import torch


@torch.no_grad()
def adam_update(parameter, gradient, average):
    average.mul_(0.9).add_((gradient**2) * 0.1)
    parameter.sub_(gradient / (torch.sqrt(gradient**2) + 1e-8))


adam_update(torch.zeros(3), torch.zeros(3), torch.zeros(3))
""",
        """\
import torch


def rmse_metric(pred, target):
    return torch.sqrt(((pred - target) ** 2).mean()).item()


print(rmse_metric(torch.zeros(3), torch.zeros(3)))
""",
        """\
import torch
from torch import nn


class Diffusion(nn.Module):
    def __init__(self, steps=10):
        super().__init__()
        self.net = nn.Linear(4, 4)
        register_buffer = lambda name, value: self.register_buffer(name, value.float())
        register_buffer("remaining", torch.linspace(1, 0, steps))
        self.sizes = torch.arange(4)

    def forward(self, x, t):
        noise = torch.sqrt((1 - self.remaining[t]).clamp(min=0))
        return self.net(x) * noise[:, None] + torch.sqrt(self.sizes**2)


Diffusion()(torch.randn(2, 4), torch.tensor([0, 9])).sum().backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for root, of, found in _reported(module):
            # a root of what can be negative too would fail at once: more is known of it than is seen here
            unsure = found is not DEAD_BRANCH and (
                found.guessed
                or found.low < 0
                or found.source in {"sigmoid", *_MEAN_LOSSES}
                or _only_in_theory(module, root, of)
            )
            yield self.finding(
                module.location(root),
                _message(found),
                severity=Severity.INFO
                if unsure or not _seen_to_learn(module, root) or not seen_to_train(module, root, of)
                else None,
            )
        yield from self._second_derivatives(module)

    def _second_derivatives(self, module: Module) -> Iterator[Finding]:
        """A norm whose gradient is taken with create_graph=True is differentiated twice."""
        for call in module.calls("torch.autograd.grad"):
            graph = module.argument(call, None, "create_graph")
            outputs = module.argument(call, 0, "outputs")
            if graph is None or module.constant(graph) is not True or outputs is None:
                continue
            for norm in _norms_in(module, outputs):
                yield self.finding(
                    module.location(norm),
                    "This norm is differentiated twice (`create_graph=True`), and its second derivative at 0 is NaN. Add a small constant under the root: `(d.square().sum() + 1e-12).sqrt()`",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        edits = []
        for root, of, _ in _reported(module):
            if root.lineno != finding.at.line:
                continue
            edit = _repaired(module, root, of)
            if edit is None:
                return None  # the line would still be wrong
            edits.append(edit)
        return Fix("Keep the square root away from zero", tuple(edits)) if edits else None


def _repaired(module: Module, root: ast.expr, of: ast.expr) -> Edit | None:
    """`sqrt(x ** 2)` → `x.abs()`, and a bound of 0 → 1e-12."""
    exponent = module.number(root.right) if isinstance(root, ast.BinOp) else None
    if exponent != 0.5 and last_name(root) != "sqrt":
        return None
    base = _square_of(module, of)
    if base is not None:
        text = module.segment(base)
        plain = isinstance(base, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return Editor(module).replace(root, (text if plain else f"({text})") + ".abs()")
    bound = _zero_bound(module, of)
    return Editor(module).replace(bound, "1e-12") if bound is not None else None


def _reported(module: Module) -> Iterator[tuple[ast.expr, ast.expr, Range]]:
    """The roots that are reported, what they are taken of, and its range."""
    for root, of in _roots(module):
        found = unguarded(module, root, of, _reaches_zero)
        if found is None or _only_targets(of) or not in_training(module, root):
            continue
        if not takes_no_gradient(module, of):
            yield root, of, found


def _reaches_zero(found: Range) -> bool:
    return found.has_zero and found.source not in _NOT_SAID


def _roots(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Every square root and what it is taken of."""
    for power in module.all(ast.BinOp):
        if isinstance(power.op, ast.Pow) and module.number(power.right) in _HALVES:
            yield power, power.left
    for call in operations(module, "sqrt", "rsqrt", "pow"):
        of = receiver(module, call)
        half = module.number(operand(module, call, "exponent")) in _HALVES
        if of is not None and (half or last_name(call) != "pow"):
            yield call, of


def _seen_to_learn(module: Module, node: ast.expr) -> bool:
    """In a loss, or in a module with weights of its own: a spectrogram or a resampling in `forward` may see data only."""
    if detached_later(module, node):
        return False
    cls = module.class_(node)
    return in_loss(module, node) or (cls is not None and learns(module, cls))


def _only_in_theory(module: Module, root: ast.expr, of: ast.expr) -> bool:
    """Many numbers are summed up, and all of them would have to be 0: a length, a spread, the mean error of a batch.

    Not so where each is compared with each, itself included, or where a factor such as a mask makes all of them 0.
    """
    if last_name(root) == "rsqrt":
        return False  # at zero even the value is infinite
    if not _summed(module, of):
        return _two_squares(module, of)
    base = _squared(module, of)
    match values_of(module).origin(base) if base is not None else None:
        case ast.BinOp(left, ast.Sub(), right):
            return begins_random(module, left) or not _broadcasts(left, right)
        case ast.BinOp(op=ast.Mult()):
            return False
    return True


def _summed(module: Module, node: ast.expr) -> bool:
    """A sum or a mean, or what is computed of sums, means and settings alone."""
    match values_of(module).origin(node):
        case ast.Call() as call if last_name(call) in _KEEPS and (inner := receiver(module, call)):
            return _summed(module, inner)
        case ast.Call() as call:
            whole = (
                last_name(call) in _MEAN_LOSSES and module.argument(call, None, "reduction") is None
            )
            spread = last_name(call) == "var" and not call.args and not call.keywords
            return whole or spread or last_name(call) in _SUMS
        case ast.BinOp(left, _, right):
            sides = [n for n in (left, right) if not _is_setting(module, n)]
            return bool(sides) and all(_summed(module, side) for side in sides)
    return False


def _two_squares(module: Module, of: ast.expr) -> bool:
    """`real**2 + imag**2`: both parts of a number would have to be 0 at once. Where two points are compared they often are."""
    match values_of(module).origin(of):
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            bases = [squared_base(module, side) for side in (left, right)]
            made = [values_of(module).origin(base) for base in bases if base is not None]
            apart = (isinstance(m, ast.BinOp) and isinstance(m.op, ast.Sub) for m in made)
            return len(made) == 2 and not any(apart)
    return False


def _is_setting(module: Module, node: ast.expr) -> bool:
    """A number, or what the constructor was given: `self.lambd`."""
    made = values_of(module).origin(node)
    given = isinstance(node, ast.Attribute) and isinstance(made, ast.Attribute | ast.arg)
    return given or module.number(node) is not None


def _squared(module: Module, of: ast.expr) -> ast.expr | None:
    """`x` in `(x ** 2).sum(-1)`."""
    here = values_of(module).origin(of)
    while isinstance(here, ast.Call) and last_name(here) in _SUMS | _KEEPS:
        inner = receiver(module, here)
        if inner is None:
            return None
        here = values_of(module).origin(inner)
    return squared_base(module, here) if isinstance(here, ast.expr) else None


def _broadcasts(left: ast.expr, right: ast.expr) -> bool:
    """`a[:, None] - a[None]`, `a.unsqueeze(1) - a`: each with each, itself included. Not `target.unsqueeze(0) - output`."""
    expanded = [_is_expanded(side) for side in (left, right)]
    return all(expanded) or (any(expanded) and not names_in(left).isdisjoint(names_in(right)))


def _is_expanded(side: ast.expr) -> bool:
    for node in ast.walk(side):
        match node:
            case ast.Call() if last_name(node) in {"unsqueeze", "expand", "repeat", "unsqueeze_"}:
                return True
            case ast.Subscript(slice=ast.Tuple(elts)):
                if any(isinstance(e, ast.Constant) and e.value is None for e in elts):
                    return True
    return False


def _only_targets(of: ast.expr) -> bool:
    """What is given with the data takes no gradient."""
    names = names_in(of) - {"torch"}
    return bool(names) and all(_GIVEN.search(name) for name in names)


def _norms_in(module: Module, outputs: ast.expr) -> Iterator[ast.Call]:
    """The norms of differences that this value is made of, through names."""
    queue: list[ast.expr] = [outputs]
    for _ in range(12):
        for node in ast.walk(queue.pop()) if queue else ():
            match node:
                case ast.Name(ctx=ast.Load()):
                    value = values_of(module).definition(node)
                    queue += [value] if isinstance(value, ast.expr) else []
                case ast.Call() if last_name(node) in {"norm", "vector_norm", "cdist"}:
                    found = range_of(module, receiver(module, node))
                    if found is not None and found.source == "difference":
                        yield node


def _square_of(module: Module, of: ast.expr) -> ast.expr | None:
    """`x` where `of` is its square, clamped at 0 or not."""
    if isinstance(of, ast.Call) and _zero_bound(module, of) is not None:
        inner = receiver(module, of)
        return _square_of(module, inner) if inner is not None else None
    return squared_base(module, of)


def _zero_bound(module: Module, of: ast.expr) -> ast.expr | None:
    """The 0 in `x.clamp(min=0)`."""
    if isinstance(of, ast.Call) and last_name(of) in {"clamp", "clamp_min", "clip"}:
        match operand(module, of, "min"):
            case ast.Constant(0) as low:
                return low
    return None


def _message(found: Range) -> str:
    if found is DEAD_BRANCH:
        return (
            "This square root is inside torch.where: the branch that is not taken still sends back 0 times infinity, so the gradient is NaN. "
            "Choose the input first: `torch.where(x > 0, x, 1.0).sqrt()`"
        )
    if found.source == "clamp":
        return "This square root is taken of a value clamped at 0, where its slope is infinite, so one exact 0 makes every gradient NaN. Clamp at 1e-12 instead"
    what = {"square": "a square", "var": "a variance", "std": "a standard deviation"}.get(
        found.source, found.source
    )
    return f"This square root is taken of a value that can be exactly 0 ({what}), where its slope is infinite, so every gradient becomes NaN. Add a small constant: `(x + 1e-12).sqrt()`"
