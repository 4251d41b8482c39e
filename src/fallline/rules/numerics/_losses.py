"""Whether an expression is part of a loss: what its function is called, and where its value goes.

A logarithm in a metric or in sampling code can underflow without harm; in a loss its gradient reaches the weights.
"""

from __future__ import annotations

import ast
import re

from fallline.rules.numerics._layers import last_name
from fallline.rules.numerics._values import same, values_of
from fallline.syntax import Module

__all__ = ["LOSS_TOKENS", "dead_branch", "differentiated", "guarded", "in_loss"]

_WORDS = re.compile(
    r"[Ll]oss|LOSS|[Cc]riterion|nll|NLL|(^|_)kl(_|d|$)|KL|[Ee]ntropy|[Dd]ivergence|[Oo]bjective|[Cc]ontrastive"
    r"|elbo|ELBO|[Ll]ikelihood|[Pp]enalty|(^|_)b?ce(_|$)|BCE|(^|_)(info_?)?nce(_|$)|NCE|reinforce"
)
# Of names that are assigned: `entropy` alone may be a threshold for sampling; where it is a loss, it goes on to one.
_LOSS_NAME = re.compile(
    r"loss|criterion|nll|(^|_)kl(_|d|$)|divergence|objective|elbo|penalty", re.I
)
_NOT_TRAINING = re.compile(
    r"metric|accuracy|(^|_)eval|evaluat|(^|_)test(_|$)|(^|_)valid|(^|_)predict(_|$)|(^|_)infer(_|$|ence)"
    r"|(^|_)sampl(e|ing)(_|$)|(^|_)generate(_|$)|plot|visuali|perplexity|(^|_)ppl(_|$)|(^|_)decode(_|$)|beam|search"
    r"|(^|_)score|report|summar|(^|_)log(_|$)|callback|calibrat|numpy|(^|_)transforms?(_|$)|augment|(^|_)init(_|$)",
    re.I,
)
_NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
_FLOWS = 5
# Tests of what a tensor looks like, which say nothing about its values.
_SHAPE_TEST = re.compile(
    r"is (not )?None|\.dim\(|\.size\(|\.shape|\.ndim|isinstance|hasattr|\.device|\.is_|dtype|reduction"
)
# A file with none of these holds no loss that these rules could place.
LOSS_TOKENS = (
    b"loss",
    b"Loss",
    b"criterion",
    b"nll",
    b"kl",
    b"KL",
    b"entropy",
    b"divergence",
    b"backward",
)


def in_loss(module: Module, node: ast.AST) -> bool:
    """Whether this expression's value becomes part of a loss that is trained on."""
    if not differentiated(module, node):
        return False
    if any(
        isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and _WORDS.search(up.name)
        for up in module.parents(node)
    ):
        return not _only_measured(module, node, _FLOWS)
    return _reaches_loss(module, node, _FLOWS) and not _only_measured(module, node, _FLOWS)


def _only_measured(module: Module, node: ast.AST, flows: int) -> bool:
    """A metric next to the loss: every use of the value ends in a number, or in a comparison."""
    statement = module.statement(node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name) or flows == 0:
        return False
    uses = _uses(module, target.id, module.scope(node), statement)
    return bool(uses) and all(
        _becomes_a_number(module, use)
        or (module.statement(use) is not statement and _only_measured(module, use, flows - 1))
        for use in uses
    )


def _becomes_a_number(module: Module, use: ast.AST) -> bool:
    for up in module.parents(use):
        if isinstance(up, ast.stmt):
            return False
        if isinstance(up, ast.Compare) or (
            isinstance(up, ast.Call)
            and isinstance(up.func, ast.Attribute)
            and up.func.attr in {"item", "tolist", "numpy", "detach"}
        ):
            return True
    return False


def differentiated(module: Module, node: ast.AST) -> bool:
    """Not under no_grad, and not in a function that measures, samples or plots."""
    for up in module.parents(node):
        if isinstance(up, ast.With | ast.AsyncWith) and any(
            _no_grad(module, i.context_expr) for i in up.items
        ):
            return False
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            if up.name.startswith("test_") or (
                _NOT_TRAINING.search(up.name) and not _WORDS.search(up.name)
            ):
                return False
            if any(_no_grad(module, d) for d in up.decorator_list):
                return False
        if isinstance(up, ast.ClassDef) and re.search(
            r"^Test|Metric|Accuracy|Evaluator|Dataset|Transform|Sampler|Processor|Warper|Optimizer",
            up.name,
        ):
            return False
        if isinstance(up, ast.Call) and (module.resolve(up.func) or "").startswith(
            ("numpy.", "math.", "scipy.")
        ):
            return False
        if (
            isinstance(up, ast.Call)
            and isinstance(up.func, ast.Attribute)
            and up.func.attr in {"detach", "item", "numpy", "tolist"}
        ):
            return False
    return True


def _no_grad(module: Module, node: ast.expr) -> bool:
    return module.resolve(node.func if isinstance(node, ast.Call) else node) in _NO_GRAD


def _reaches_loss(module: Module, node: ast.AST, flows: int) -> bool:
    """Follow the value forward: into something called loss, or into a backward()."""
    child: ast.AST = node
    for up in module.parents(node):
        if isinstance(up, ast.stmt):
            break
        if isinstance(up, ast.Call) and not _passes(module, up, child):
            return False
        if isinstance(up, ast.Attribute) and up.attr == "backward":
            return True
        child = up
    else:
        return False
    targets: list[ast.expr] = []
    if isinstance(up, ast.Assign):
        targets = [
            t
            for target in up.targets
            for t in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
    elif isinstance(up, ast.AnnAssign | ast.AugAssign):
        targets = [up.target]
    for target in targets:
        if _LOSS_NAME.search(_written(target)):
            return True
    if flows == 0:
        return False
    if isinstance(up, ast.Return):
        function = module.function(up)
        calls = values_of(module).calls_of(function) if function is not None else []
        return any(_reaches_loss(module, call, flows - 1) for call in calls[:8])
    scope = module.scope(node)
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    for name in names:
        for use in _uses(module, name, scope, up):
            if _reaches_loss(module, use, flows - 1):
                return True
    return False


def _passes(module: Module, call: ast.Call, child: ast.AST) -> bool:
    """Whether a value that enters a call still is the value that comes out: an operation does, a layer does not."""
    name = last_name(call)
    if name in {
        "argmax",
        "argsort",
        "sort",
        "topk",
        "multinomial",
        "item",
        "print",
        "append",
        "isnan",
        "isfinite",
    }:
        return False
    if (
        call.func is child
        or _WORDS.search(name)
        or name in {"sum", "float", "min", "max", "abs", "dict"}
    ):
        return True
    dotted = module.resolve(call.func)
    if dotted is not None:
        return dotted.startswith("torch.")
    made = call.func if isinstance(call.func, ast.Call) else values_of(module).model(call.func)
    if isinstance(made, ast.Call) and last_name(made).endswith("Loss"):
        return True
    return isinstance(call.func, ast.Attribute) and not module.segment(call.func).startswith(
        "self."
    )


def _uses(module: Module, name: str, scope: ast.AST | None, after: ast.stmt) -> list[ast.Name]:
    """Where a local name is read, after a statement, in the same function."""
    last = getattr(scope, "end_lineno", None) or float("inf")
    return [
        n
        for n in module.all(ast.Name)
        if n.id == name
        and isinstance(n.ctx, ast.Load)
        and after.lineno < n.lineno <= last
        and module.scope(n) is scope
    ]


def _written(target: ast.expr) -> str:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""


def guarded(module: Module, node: ast.expr) -> bool:
    """Whether the function tests one of the names in this expression before it gets here: `if mask.any():`.

    Which way the test goes is not asked: someone thought of the case.
    """
    names = _roots(module, node)
    function = module.function(node)
    before = node.end_lineno or node.lineno
    asked: list[ast.If | ast.IfExp | ast.Assert | ast.While] = [
        *module.all(ast.If),
        *module.all(ast.IfExp),
        *module.all(ast.Assert),
        *module.all(ast.While),
    ]
    tests = [n.test for n in asked if n.lineno <= before and module.function(n) is function]
    for test in tests:
        if any(
            isinstance(n, ast.Name) and n.id in names for n in ast.walk(test)
        ) and not _SHAPE_TEST.search(module.segment(test)):
            return True
    return any(_changed_in_place(module, name, function, before) for name in names)


def _changed_in_place(module: Module, name: str, function: ast.AST | None, before: int) -> bool:
    """`x[x < eps] = eps` or `x.clamp_(min=eps)` before this line."""
    for target in module.all(ast.Subscript):
        if (
            isinstance(target.ctx, ast.Store)
            and isinstance(target.value, ast.Name)
            and target.value.id == name
        ):
            if target.lineno <= before and module.function(target) is function:
                return True
    for call in module.method_calls(
        "clamp_", "clamp_min_", "masked_fill_", "add_", "fill_", "clip_"
    ):
        on = call.func.value if isinstance(call.func, ast.Attribute) else None
        if (
            isinstance(on, ast.Name)
            and on.id == name
            and call.lineno <= before
            and module.function(call) is function
        ):
            return True
    return False


def dead_branch(module: Module, node: ast.AST, value: ast.expr) -> bool:
    """Inside `torch.where(value > 0, ..., ...)`: the branch that is not taken still gets a gradient, 0 times infinity."""
    for up in module.parents(node):
        if isinstance(up, ast.stmt):
            return False
        if (
            isinstance(up, ast.Call)
            and module.resolve(up.func) == "torch.where"
            and len(up.args) == 3
        ):
            test = values_of(module).follow(up.args[0])
            if not isinstance(test, ast.Compare) or len(test.comparators) != 1:
                return False
            sides = (test.left, test.comparators[0])
            return any(
                same(side, value) and _is_tiny(module, other)
                for side, other in (sides, sides[::-1])
            )
    return False


def _is_tiny(module: Module, node: ast.expr) -> bool:
    number = module.number(node)
    return (number is not None and abs(number) <= 1e-2) or "eps" in module.segment(node).lower()


def _roots(module: Module, node: ast.expr) -> set[str]:
    """The names an expression is made of, with those of their single assignments."""
    found: set[str] = set()
    queue: list[ast.AST] = [node]
    while queue and len(found) < 20:
        here = queue.pop()
        for inner in ast.walk(here):
            if (
                isinstance(inner, ast.Name)
                and inner.id not in found
                and inner.id not in module.imports
                and inner.id != "self"
            ):
                found.add(inner.id)
                value = module.value(inner)
                if value is not inner and len(found) < 8:
                    queue.append(value)
    return found
