"""FL608: a non-finite loss or gradient is replaced instead of reported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in, operations, receiver, same
from fallline.flow.losses import differentiated
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.once import once

_LOSS = re.compile(r"(^|_)loss(es)?($|_)|^(nll|cost|objective)$|loss$", re.I)
_TESTS = frozenset({"isnan", "isinf", "isfinite"})
_SPEAKS = re.compile(
    r"^(print|log|info|warning|warn|error|debug|exception|critical|write|add_scalar|exit)$|log|skip|count",
    re.I,
)
_SWALLOWS = frozenset(
    "Exception BaseException RuntimeError ValueError FloatingPointError ArithmeticError".split()
)


class NanHidden(Rule):
    code = "FL608"
    name = "nan-hidden"
    severity = Severity.WARNING
    what = "A non-finite loss or gradient is hidden: by nan_to_num, by a zero in its place, or by an except block."
    why = """\
The curve looks fine while the model learns nothing or is already broken: the NaN was the only sign.

`nan_to_num` turns an infinite loss into 3.4e38 and its gradient into 0 or, through the operation that overflowed, back into NaN. A loss replaced by 0 skips the batch in
silence, every time it comes. Once a weight is NaN every later loss is replaced."""
    instead = """\
Log it, skip the update, and find the operation.

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
        for at, what, how in [*_replaced(module), *_replaced_under_test(module)]:
            yield self.finding(
                module.location(at),
                f"{how}, so the run looks healthy while the model is broken or learns nothing. "
                f"Log the {what} and skip the update: `if not torch.isfinite(...)`",
                # in a term, or where the loss is written, somebody has met it: which rows, which mask; a guard of the gradients is chosen
                severity=None if what == "loss" and _is_trained_on(module, at) else Severity.INFO,
            )
        for handler in _swallowing(module):
            yield self.finding(
                module.source.location(handler.type or handler, module.qualname(handler)),
                "This except drops every error of backward, a non-finite loss included, so nothing shows why updates are missing. "
                "Catch only what you expect, and log it",
            )


Replaced = tuple[ast.AST, str, str]


def _replaced(module: Module) -> Iterator[Replaced]:
    """`loss.nan_to_num()`, `torch.where(torch.isnan(loss), 0, loss)`, `loss if torch.isfinite(loss) else 0`, `loss[isnan(loss)] = 0`."""
    for call in operations(module, "nan_to_num", "nan_to_num_"):
        what = _hidden_by_nan_to_num(module, call)
        if what is not None and differentiated(module, call):
            yield call, what, f"nan_to_num replaces a non-finite {what}"
    for call in operations(module, "where", "masked_fill", "masked_fill_"):
        tested = next((of for a in call.args if (of := _tested(module, a)) is not None), None)
        what = _loss_or_gradient(tested)
        if what is not None and differentiated(module, call):
            yield call, what, f"A non-finite {what} is replaced here"
    if not _asks_at_all(module):
        return
    for choice in module.all(ast.IfExp):
        of = _tested(module, choice.test)
        what = _loss_or_gradient(of)
        if what is None or not isinstance(module.parent(choice), ast.Assign | ast.Return):
            continue
        kept = any(_alike(module, side, of) for side in (choice.body, choice.orelse))
        if kept and differentiated(module, choice):
            yield choice, what, f"A non-finite {what} is replaced here"
    for assign in module.all(ast.Assign):
        match assign.targets[0]:
            case ast.Subscript(value, index) if (what := _loss_or_gradient(value)) is not None:
                if _tested(module, index) is not None and differentiated(module, assign):
                    yield assign, what, f"The non-finite entries of a {what} are overwritten here"


def _replaced_under_test(module: Module) -> Iterator[Replaced]:
    """`if torch.isnan(loss): loss = 0`, with nothing logged."""
    for branch in module.all(ast.If) if _asks_at_all(module) else ():
        of = _tested(module, branch.test)
        what = _loss_or_gradient(of)
        if what is None:
            continue
        negated = isinstance(branch.test, ast.UnaryOp) and isinstance(branch.test.op, ast.Not)
        finite = "isfinite" in module.segment(branch.test)
        body = branch.orelse if finite and not negated else branch.body
        if any(_speaks(s) for s in body):
            continue
        for statement in body:
            if isinstance(statement, ast.Assign):
                if any(_alike(module, t, of) for t in statement.targets):
                    yield statement, what, f"A non-finite {what} is replaced here"


def _swallowing(module: Module) -> Iterator[ast.ExceptHandler]:
    """Except blocks that drop whatever goes wrong around backward()."""
    for attempt in module.all(ast.Try):
        inside = (n for s in attempt.body for n in ast.walk(s))
        if any(isinstance(n, ast.Call) and last_name(n) == "backward" for n in inside):
            for handler in attempt.handlers:
                if _catches_all(handler) and all(_does_nothing(s) for s in handler.body):
                    yield handler


def _hidden_by_nan_to_num(module: Module, call: ast.Call) -> str | None:
    of = receiver(module, call)
    what = _loss_or_gradient(of)
    if what == "gradient" and not _of_weights(module, of):
        return None
    match module.parent(call):
        case ast.Assign([target, *_]):
            return what or _loss_or_gradient(target)
        case ast.Return():
            function = module.function(call)
            named = function is not None and _LOSS.search(function.name)
            return what or ("loss" if named else None)
        case ast.Lambda() as hook if _is_hook(module, hook):
            return "gradient"
    return what


def _is_trained_on(module: Module, at: ast.AST) -> bool:
    """What is replaced here is the very loss that backward starts from, and not because a mask selects nothing."""
    if _where_nothing_is_selected(module, at):
        return False
    statement = module.statement(at)
    match statement:
        case ast.Assign([ast.Name(name) | ast.Subscript(ast.Name(name))]):
            pass
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name)))):
            pass
        case _:
            return False
    for call in module.method_calls("backward"):
        if module.scope(call) is module.scope(statement) and isinstance(call.func, ast.Attribute):
            if name in names_in(call.func.value, *call.args):
                return True
    return False


def _where_nothing_is_selected(module: Module, node: ast.AST) -> bool:
    """`nan_to_num(loss(pred[mask], target[mask]))`, also by a function around it: a mean over nothing is NaN, and that is known."""
    match node:
        case ast.Call(ast.Attribute(attr="nan_to_num"), [ast.Call(args=[_, *_] as given) as loss]):
            pass
        case _:
            return False
    if any(k.arg == "reduction" and module.constant(k.value) == "none" for k in loss.keywords):
        return False
    return all(_selected(module, value) for value in given)


def _selected(module: Module, value: ast.expr) -> bool:
    """`pred[mask]`, or an argument that is one wherever this file passes it."""
    match value:
        case ast.Subscript(slice=mask):
            return isinstance(module.value(mask), ast.Compare)
        case ast.Name(name):
            match module.bindings(name, module.function(value)):
                case [ast.arg() as argument]:
                    passed = values_of(module).passed(argument)
                    return bool(passed) and all(
                        isinstance(p, ast.Subscript) and _selected(module, p) for p in passed
                    )
    return False


def _of_weights(module: Module, node: ast.expr | None) -> bool:
    """Not the differences between neighbours of an image: `grads = self.edges(image)`, or what an argument of such a name is given."""
    if not isinstance(node, ast.Name):
        return True
    made = values_of(module).definition(node)
    if made is None or isinstance(made, ast.arg):
        return True
    text = module.segment(made)
    return not isinstance(made, ast.Call) or ".grad" in text or "autograd" in text


def _is_hook(module: Module, function: ast.Lambda) -> bool:
    """`parameter.register_hook(lambda grad: ...)`: what it returns is the gradient from then on."""
    up = module.parent(function)
    return isinstance(up, ast.Call) and last_name(up) in {
        "register_hook",
        "register_post_accumulate_grad_hook",
    }


def _alike(module: Module, a: ast.expr, b: ast.expr | None) -> bool:
    return b is not None and module.segment(a) == module.segment(b)


def _loss_or_gradient(node: ast.AST | None) -> str | None:
    """`loss` or `gradient` where the expression is named as one."""
    match node:
        case ast.Attribute(attr="grad"):
            return "gradient"
        case ast.Name(name) | ast.Attribute(attr=name) if _LOSS.search(name):
            return "loss"
        case ast.Name(name) if re.search(r"(^|_)grads?$", name):
            return "gradient"
        case ast.Call(ast.Attribute(value), []):
            return _loss_or_gradient(value)  # loss.mean()
    return None


@once
def _asks_at_all(module: Module) -> bool:
    """Whether a file asks anywhere if something is finite."""
    return bool(module.calls_named(_TESTS)) or any(
        isinstance(c.ops[0], ast.NotEq) and same(c.left, c.comparators[0])
        for c in module.all(ast.Compare)
    )


def _tested(module: Module, node: ast.expr) -> ast.expr | None:
    """The value whose finiteness a condition asks about: `torch.isnan(x)`, `x.isnan()`, `~torch.isfinite(x)`, `x != x`."""
    match node:
        case ast.BoolOp(values=parts):
            return next((t for v in parts if (t := _tested(module, v)) is not None), None)
        case ast.BinOp(left, _, right):
            return _tested(module, left) or _tested(module, right)
        case ast.UnaryOp(operand=inner):
            return _tested(module, inner)
        case ast.Call() if last_name(node) in _TESTS:
            of = receiver(module, node) or (node.args[0] if node.args else None)
            while True:
                match of:
                    case ast.Call(ast.Attribute(inner, "item" | "detach" | "sum")):
                        of = inner  # math.isnan(loss.item())
                    case _:
                        return of
        case ast.Call(ast.Attribute(inner, "any" | "all" | "item" | "bool")):
            return _tested(module, inner)
        case ast.Compare(left, [ast.NotEq()], [right]) if same(left, right):
            return left
    return None


def _speaks(statement: ast.stmt) -> bool:
    """Whether a statement raises, leaves, logs, or counts what was skipped."""
    for node in ast.walk(statement):
        match node:
            case ast.Raise() | ast.Assert() | ast.AugAssign():
                return True
            case ast.Call() if _SPEAKS.search(last_name(node)):
                return True
    return False


def _catches_all(handler: ast.ExceptHandler) -> bool:
    match handler.type:
        case None:
            return True
        case ast.Tuple(types):
            return any(isinstance(t, ast.Name) and t.id in _SWALLOWS for t in types)
        case ast.Name(name):
            return name in _SWALLOWS
    return False


def _does_nothing(statement: ast.stmt) -> bool:
    """`pass`, `continue`, or clearing the gradients: nobody learns that something went wrong."""
    match statement:
        case ast.Expr(ast.Call() as call):
            return last_name(call) == "zero_grad"
        case ast.Pass() | ast.Continue() | ast.Expr(ast.Constant()):
            return True
    return False
