"""FL608: a non-finite loss or gradient is replaced instead of reported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.numerics._layers import last_name, operations, receiver
from fallline.rules.numerics._losses import differentiated
from fallline.rules.numerics._values import same
from fallline.syntax import Module

_LOSS = re.compile(r"(^|_)loss(es)?($|_)|^(nll|cost|objective)$|loss$", re.I)
_TESTS = frozenset({"isnan", "isinf", "isfinite"})
_SPEAKS = re.compile(
    r"^(print|log|info|warning|warn|error|debug|exception|critical|write|add_scalar|exit)$|log|skip|count",
    re.I,
)
_SWALLOWS = frozenset(
    {
        "Exception",
        "BaseException",
        "RuntimeError",
        "ValueError",
        "FloatingPointError",
        "ArithmeticError",
    }
)


class NanHidden(Rule):
    code = "FL608"
    name = "nan-hidden"
    severity = Severity.WARNING
    what = "Looks for nan_to_num, a replacement by zero, or an except block that hides a non-finite loss or gradient."
    why = """\
The curve looks fine while the model learns nothing, or is already broken: the NaN is the only message that something is wrong.

`nan_to_num` turns an infinite loss into 3.4e38 and its gradient into 0 or, through the operation that overflowed, back into NaN. A loss replaced by 0 skips the batch in
silence, every time it comes. Once a weight is NaN every later loss is replaced."""
    instead = """\
Say it, skip the update, and find the operation.

- `if not torch.isfinite(loss): log it; optimizer.zero_grad(); continue`, or raise
- `fallline run train.py` skips the update and names the operation, module and line that made the value
- nan_to_num on inputs or on fully masked attention rows is fine: there the reason is known"""
    facts = ("nan-loss-has-many-sources", "isfinite-not-isnan")
    tokens = (b"nan_to_num", b"isnan", b"isfinite", b"isinf", b"except", b"!=")
    wrong = (
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    loss = torch.nan_to_num(loss)  # FL608
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    if torch.isnan(loss):
        loss = torch.zeros((), requires_grad=True)  # FL608
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0)  # FL608
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    try:
        if not torch.isfinite(loss):
            raise ValueError("loss is not finite")
        loss.backward()
        optimizer.step()
    except ValueError:  # FL608
        pass
""",
        """\
import torch


def robust_loss(pred, target):
    loss = (pred - target).square()
    loss[torch.isnan(loss)] = 0.0  # FL608
    return loss.mean()


robust_loss(torch.randn(4, requires_grad=True), torch.randn(4)).backward()
""",
    )
    right = (
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    if not torch.isfinite(loss):
        print(f"step {step}: loss is {loss.item()}, update skipped")
        optimizer.zero_grad()
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
features = torch.nan_to_num(torch.randn(8, 4), nan=0.0)
loss = (model(features) - 1).square().mean()
if torch.isnan(loss):
    raise FloatingPointError("loss is NaN")
loss.backward()
""",
        """\
import torch


def attention(scores, mask):
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    return torch.nan_to_num(weights)  # rows that are masked completely


def masked_loss(scores, mask):
    return attention(scores, mask).square().mean()


masked_loss(torch.randn(3, 3, requires_grad=True), torch.ones(3, 3, dtype=torch.bool)).backward()
""",
        """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    try:
        loss.backward()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        optimizer.zero_grad()
        continue
    optimizer.step()
""",
        """\
import torch

best = float("inf")
history = []
for loss in torch.tensor([1.0, float("nan"), 0.5]):
    if torch.isnan(loss):
        history.append(best)
    elif loss < best:
        best = loss.item()
try:
    import apex
except ImportError:
    apex = None
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._replaced_by_function(module)
        yield from self._replaced_under_test(module)
        yield from self._replaced_in_expression(module)
        yield from self._replaced_by_mask(module)
        yield from self._swallowed(module)

    def _replaced_by_function(self, module: Module) -> Iterator[Finding]:
        """`loss.nan_to_num()`, `p.grad.nan_to_num_()`, `torch.where(torch.isnan(loss), 0, loss)`."""
        for call in operations(module, "nan_to_num", "nan_to_num_"):
            of = receiver(module, call)
            what = _loss_or_gradient(of) if of is not None else None
            up = module.parent(call)
            if what is None and isinstance(up, ast.Assign):
                what = _loss_or_gradient(up.targets[0])
            if what is None and isinstance(up, ast.Return):
                function = module.function(call)
                what = "loss" if function is not None and _LOSS.search(function.name) else None
            if what is not None and differentiated(module, call):
                yield self.finding(module.location(call), f"nan_to_num hides a non-finite {what}")
        for call in operations(module, "where", "masked_fill", "masked_fill_"):
            tested = next((of for a in call.args if (of := _tested(module, a)) is not None), None)
            what = _loss_or_gradient(tested)
            if what is not None and differentiated(module, call):
                yield self.finding(
                    module.location(call), f"A non-finite {what} is replaced without a word"
                )

    def _replaced_under_test(self, module: Module) -> Iterator[Finding]:
        """`if torch.isnan(loss): loss = 0`, with nothing said."""
        for branch in module.all(ast.If):
            of = _tested_in(module, branch.test)
            what = _loss_or_gradient(of) if of is not None else None
            if what is None or of is None:
                continue
            negated = isinstance(branch.test, ast.UnaryOp) and isinstance(branch.test.op, ast.Not)
            finite = "isfinite" in module.segment(branch.test)
            body = branch.orelse if finite and not negated else branch.body
            if any(_speaks(s) for s in body):
                continue
            for statement in body:
                if isinstance(statement, ast.Assign) and any(
                    module.segment(t) == module.segment(of) for t in statement.targets
                ):
                    yield self.finding(
                        module.location(statement),
                        f"A non-finite {what} is replaced without a word",
                    )

    def _replaced_in_expression(self, module: Module) -> Iterator[Finding]:
        """`loss = loss if torch.isfinite(loss) else 0`."""
        for choice in module.all(ast.IfExp):
            of = _tested_in(module, choice.test)
            what = _loss_or_gradient(of)
            if (
                what is None
                or of is None
                or not isinstance(module.parent(choice), ast.Assign | ast.Return)
            ):
                continue
            kept = any(
                module.segment(s) == module.segment(of) for s in (choice.body, choice.orelse)
            )
            if kept and differentiated(module, choice):
                yield self.finding(
                    module.location(choice), f"A non-finite {what} is replaced without a word"
                )

    def _replaced_by_mask(self, module: Module) -> Iterator[Finding]:
        """`loss[torch.isnan(loss)] = 0`, `p.grad[p.grad != p.grad] = 0`."""
        for assign in module.all(ast.Assign):
            target = assign.targets[0]
            if not isinstance(target, ast.Subscript):
                continue
            what = _loss_or_gradient(target.value)
            if (
                what is not None
                and _tested_in(module, target.slice) is not None
                and differentiated(module, assign)
            ):
                yield self.finding(
                    module.location(assign),
                    f"The non-finite entries of a {what} are overwritten without a word",
                )

    def _swallowed(self, module: Module) -> Iterator[Finding]:
        """An except block that drops what went wrong around backward()."""
        for attempt in module.all(ast.Try):
            if not any(
                isinstance(n, ast.Call) and last_name(n) == "backward"
                for s in attempt.body
                for n in ast.walk(s)
            ):
                continue
            for handler in attempt.handlers:
                if _catches_all(handler) and all(_does_nothing(s) for s in handler.body):
                    at = module.source.location(handler.type or handler, module.qualname(handler))
                    yield self.finding(
                        at,
                        "Whatever goes wrong in backward, a non-finite loss included, is dropped here without a word",
                    )


def _loss_or_gradient(node: ast.AST | None) -> str | None:
    """`loss` or `gradient` where the expression is named as one."""
    if isinstance(node, ast.Name):
        return (
            "loss"
            if _LOSS.search(node.id)
            else "gradient"
            if re.search(r"(^|_)grads?$", node.id)
            else None
        )
    if isinstance(node, ast.Attribute):
        return "gradient" if node.attr == "grad" else "loss" if _LOSS.search(node.attr) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        return _loss_or_gradient(node.func.value)  # loss.mean()
    return None


def _tested(module: Module, node: ast.expr) -> ast.expr | None:
    """`x` of `torch.isnan(x)`, `x.isnan()`, `~torch.isfinite(x)` and `x != x`."""
    if isinstance(node, ast.UnaryOp):
        return _tested(module, node.operand)
    if isinstance(node, ast.Call):
        if last_name(node) in _TESTS:
            of = receiver(module, node) or (node.args[0] if node.args else None)
            while (
                isinstance(of, ast.Call)
                and isinstance(of.func, ast.Attribute)
                and of.func.attr in {"item", "detach", "sum"}
            ):
                of = of.func.value  # math.isnan(loss.item())
            return of
        if last_name(node) in {"any", "all", "item", "bool"} and isinstance(
            node.func, ast.Attribute
        ):
            return _tested(module, node.func.value)
        return None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotEq):
        return node.left if same(node.left, node.comparators[0]) else None
    return None


def _tested_in(module: Module, node: ast.expr) -> ast.expr | None:
    """The value whose finiteness a condition asks about."""
    if isinstance(node, ast.BoolOp):
        return next((t for v in node.values if (t := _tested_in(module, v)) is not None), None)
    if isinstance(node, ast.BinOp):
        return _tested_in(module, node.left) or _tested_in(module, node.right)
    return _tested(module, node)


def _speaks(statement: ast.stmt) -> bool:
    """Whether a statement raises, leaves, or tells someone."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Raise | ast.Assert):
            return True
        if isinstance(node, ast.Call) and _SPEAKS.search(last_name(node)):
            return True
        if isinstance(node, ast.AugAssign):  # a counter of skipped batches
            return True
    return False


def _catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(t, ast.Name) and t.id in _SWALLOWS for t in types)


def _does_nothing(statement: ast.stmt) -> bool:
    """`pass`, `continue`, or clearing the gradients: nobody learns that something went wrong."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value) == "zero_grad"
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
