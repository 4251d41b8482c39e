"""Whether an expression is part of a loss: what its function is called, and where its value goes.

A logarithm in a metric or in sampling code can underflow without harm; in a loss its gradient reaches the weights.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Literal

from fallline.flow.algebra import DEAD_BRANCH, Range
from fallline.flow.calls import last_name, names_in, same
from fallline.flow.hints import is_mask
from fallline.flow.ranges import range_of
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below
from fallline.syntax.once import once

__all__ = [
    "LOSS_TOKENS",
    "calls_of_what_is_built",
    "differentiated",
    "guarded",
    "in_loss",
    "loss_calls",
    "trained_names",
    "unguarded",
]

_WORDS = re.compile(
    r"[Ll]oss|LOSS|[Cc]riterion|nll|NLL|(^|_)kl(_|d|$)|KL|[Ee]ntropy|[Dd]ivergence|[Oo]bjective|[Cc]ontrastive"
    r"|elbo|ELBO|[Ll]ikelihood|[Pp]enalty|(^|_)masked_(mean|average)$|(^|_)logps(_|$)|(^|_)b?ce(_|$)|BCE|(^|_)(info_?)?nce(_|$)|NCE|reinforce"
)
# Of names that are assigned: `entropy` alone may be a threshold for sampling; where it is a loss, it goes on to one.
_LOSS_NAME = re.compile(
    r"loss|criterion|nll|(^|_)kl(_|d|$)|divergence|objective|elbo|penalty", re.I
)
_NOT_TRAINING = re.compile(
    r"metric|accuracy|(^|_)eval|evaluat|(^|_)test(_|$)|(^|_)valid|(^|_)predict(_|$)|(^|_)infer(_|$|ence)"
    r"|(^|_)sampl(e|ing)(_|$)|(^|_)generate(_|$)|plot|visuali|perplexity|(^|_)ppl(_|$)|(^|_)decode(_|$)|beam|search"
    r"|(^|_)score|report|summar|(^|_)log(_(?!p$|q$|p[xz]|prob|likelihood|det|sum|sig|soft|odds|ratio)|$)|callback|calibrat|numpy|(^|_)transforms?(_|$)|augment|(^|_)init(_|$)",
    re.I,
)
_NO_GRAD = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
_NOT_TRAINING_CLASS = re.compile(
    r"^Test|Metric|Accuracy|Evaluator|Dataset|Transform|Sampler|Processor|Warper|Optimizer"
)
_STOPS = frozenset({"detach", "item", "numpy", "tolist"})
_PICKS_ONLY = frozenset(
    "argmax argsort sort topk multinomial item print append isnan isfinite".split()
)
_LOSS_HOMES = ("torch.nn.", "torch.nn.functional.", "torchvision.ops.", "timm.loss.")
_IN_PLACE = ("clamp_", "clamp_min_", "masked_fill_", "add_", "fill_", "clip_")
_FLOWS = 5
# Tests of what a tensor looks like, which say nothing about its values.
_SHAPE_TEST = re.compile(
    r"is (not )?None|\.dim\(|\.size\(|\.shape|\.ndim|isinstance|hasattr|\.device|\bis_\w+\(|\.is_|dtype|reduction|\.layout"
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


def loss_calls(module: Module, *names: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls of these losses: functions, `nn.CrossEntropyLoss()(...)`, `criterion(...)`, `self.loss_fn(...)`; each with its name."""
    made: list[ast.Call] = []
    for home in _LOSS_HOMES:
        for name in names:
            calls = module.calls(home + name)
            if name[:1].isupper():
                made += calls
            else:
                yield from ((call, name) for call in calls)
    ours = set(made)
    for call, built in calls_of_what_is_built(module) if made else ():
        if ours.issuperset(built) and len({last_name(b) for b in built}) == 1:
            yield call, last_name(built[0])


@once
def calls_of_what_is_built(module: Module) -> list[tuple[ast.Call, list[ast.Call]]]:
    """Calls of objects that this file builds, with two arguments or keywords, and their constructions."""
    called: list[tuple[ast.Call, list[ast.Call]]] = []
    for call in module.all(ast.Call):
        if len(call.args) < 2 and not call.keywords:
            continue
        match call.func:
            case ast.Call() | ast.Attribute(ast.Name("self")):
                pass
            case ast.Name() if module.resolve(call.func) is None:
                pass
            case _:
                continue
        made = values_of(module).constructed(call.func)
        built = [made] if made is not None else values_of(module).constructions(call.func)
        if built:
            called.append((call, built))
    return called


def in_loss(module: Module, node: ast.AST) -> bool:
    """Whether this expression's value becomes part of a loss that is trained on."""
    if not differentiated(module, node):
        return False
    trained = _named_as_loss(module, node) or _reaches_loss(module, node, _FLOWS)
    return trained and not _only_measured(module, node, _FLOWS)


def _named_as_loss(module: Module, node: ast.AST) -> bool:
    """Inside a function or a class that is called like a loss, but not where such a class is set up."""
    for up in module.parents(node):
        match up:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                if _WORDS.search(name):
                    return True
                if name == "__init__" or _only_at_set_up(module, up):
                    return False
            case ast.ClassDef(name) if _WORDS.search(name):
                return True
    return False


def _only_at_set_up(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A method that nothing but the constructor calls."""
    if not isinstance(module.parent(function), ast.ClassDef):
        return False
    callers = [module.function(call) for call in values_of(module).calls_of(function)]
    return bool(callers) and all(c is not None and c.name == "__init__" for c in callers)


def _only_measured(module: Module, node: ast.AST, flows: int) -> bool:
    """A metric next to the loss: every use of the value ends in a number, or in a comparison."""
    statement = module.statement(node)
    match statement:
        case ast.Assign([ast.Name(name), *_]) if flows:
            uses = values_of(module).uses(name, module.scope(node), statement)
        case _:
            return False
    return bool(uses) and all(
        _becomes_a_number(module, use)
        or (module.statement(use) is not statement and _only_measured(module, use, flows - 1))
        for use in uses
    )


def _becomes_a_number(module: Module, use: ast.AST) -> bool:
    for up in module.parents(use):
        match up:
            case ast.stmt():
                return False
            case ast.Compare():
                return True
            case ast.Call(ast.Attribute(attr=method)) if method in _STOPS:
                return True
    return False


def differentiated(module: Module, node: ast.AST) -> bool:
    """Not under no_grad, and not in a function that measures, samples or plots."""
    for up in module.parents(node):
        match up:
            case ast.With(items) | ast.AsyncWith(items):
                if any(_no_grad(module, i.context_expr) for i in items):
                    return False
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                measures = _NOT_TRAINING.search(name) and not _WORDS.search(name)
                if measures or name.startswith("test_"):
                    return False
                if any(_no_grad(module, d) for d in up.decorator_list):
                    return False
            case ast.ClassDef(name) if _NOT_TRAINING_CLASS.search(name):
                if not name.endswith("Loss"):
                    return False
            case ast.Call(ast.Attribute(attr=method)) if method in _STOPS:
                return False
            case ast.Call(func):
                if (module.resolve(func) or "").startswith(("numpy.", "math.", "scipy.")):
                    return False
    return True


def _no_grad(module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):  # `@torch.no_grad() if available else plain`
        return _no_grad(module, node.body) or _no_grad(module, node.orelse)
    return module.resolve(node.func if isinstance(node, ast.Call) else node) in _NO_GRAD


def _reaches_loss(module: Module, node: ast.AST, flows: int) -> bool:
    """Follow the value forward: into something called loss, or into a backward(). Each place is looked at once, however many ways lead to it."""
    seen: set[ast.AST] = set()
    reached: list[ast.AST] = [node]
    for _ in range(flows + 1):
        ahead: list[ast.AST] = []
        for place in reached:
            if place in seen:
                continue
            seen.add(place)
            statement = _carried_to(module, place)
            if statement is True:
                return True
            if statement is not None:
                ahead += _used_next(module, place, statement)
        reached = ahead
    return False


def _carried_to(module: Module, node: ast.AST) -> ast.stmt | Literal[True] | None:
    """The statement that takes the value of a node on; True if that already is a loss, None if the value ends on its way."""
    child: ast.AST = node
    for up in module.parents(node):
        match up:
            case ast.stmt():
                named = any(_LOSS_NAME.search(_written(target)) for target in _targets(up))
                return named or up
            case ast.Call() if not _passes(module, up, child):
                return None
            case ast.Attribute(attr="backward"):
                return True
        child = up
    return None


def _used_next(module: Module, node: ast.AST, statement: ast.stmt) -> Iterator[ast.AST]:
    """Where a function's callers get the value, or where the names that hold it are read."""
    values = values_of(module)
    if isinstance(statement, ast.Return):
        function = module.function(statement)
        yield from (values.calls_of(function) if function is not None else [])[:8]
        return
    for name in {t.id for t in _targets(statement) if isinstance(t, ast.Name)}:
        yield from values.uses(name, module.scope(node), statement)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets):
            return [part for target in targets for part in _parts(target)]
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return [target]
    return []


def _parts(target: ast.expr) -> list[ast.expr]:
    """The names in `a, (b, c)`."""
    if isinstance(target, ast.Tuple | ast.List):
        return [part for inner in target.elts for part in _parts(inner)]
    return [target]


def _passes(module: Module, call: ast.Call, child: ast.AST) -> bool:
    """Whether a value that enters a call still is the value that comes out: an operation does, a layer does not."""
    name = last_name(call)
    if name in _PICKS_ONLY:
        return False
    if call.func is child or _WORDS.search(name):
        return True
    if name in {"sum", "float", "min", "max", "abs", "dict"}:
        return True
    dotted = module.resolve(call.func)
    if dotted is not None:
        return dotted.startswith("torch.")
    made = values_of(module).constructed(call.func)
    if made is not None and last_name(made).endswith("Loss"):
        return True
    on_self = module.segment(call.func).startswith("self.")
    return isinstance(call.func, ast.Attribute) and not on_self


def _written(target: ast.expr) -> str:
    match target:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(key)):
            return str(key)
    return ""


def unguarded(
    module: Module, at: ast.expr, value: ast.expr | None, bad: Callable[[Range], bool]
) -> Range | None:
    """The range of a value that can be bad here, where nobody tests it before; `DEAD_BRANCH` inside torch.where."""
    if value is None:
        return None
    if _dead_branch(module, at, value):
        return DEAD_BRANCH
    found = range_of(module, value)
    return found if found is not None and bad(found) and not guarded(module, value) else None


def guarded(module: Module, node: ast.expr) -> bool:
    """Whether the function tests one of the names in this expression before it gets here: `if mask.any():`.

    Which way the test goes is not asked: someone thought of the case.
    """
    before = node.end_lineno or node.lineno
    until = _roots(module, node)
    names = until.keys()
    function = module.function(node)
    if any(
        line <= before and names & tested and not _SHAPE_TEST.search(module.segment(test))
        for line, test, tested in _tests(module, function)
    ):
        return True
    return any(
        at.lineno <= last and module.function(at) is function
        for name, last in until.items()
        for at in _changes_in_place(module).get(name, ())
    )


@once
def _tests(module: Module, function: ast.AST | None) -> list[tuple[int, ast.expr, set[str]]]:
    """What a function asks, with the line and the names in it."""
    asked: list[ast.If | ast.IfExp | ast.Assert | ast.While] = below(
        function or module.tree, ast.If, ast.IfExp, ast.Assert, ast.While
    )
    own = [n for n in asked if module.function(n) is function]
    return [(n.lineno, n.test, names_in(n.test)) for n in own]


@once
def _changes_in_place(module: Module) -> dict[str, list[ast.expr]]:
    """`x[x < eps] = eps` and `x.clamp_(min=eps)`: the name and the places; `x[rows] = y` only fills it."""
    places: dict[str, list[ast.expr]] = {}
    for target in module.all(ast.Subscript):
        match target:
            case ast.Subscript(ast.Name(name), index, ast.Store()):
                if not _counts_up(module, index):
                    places.setdefault(name, []).append(target)
    for call in module.method_calls(*_IN_PLACE):
        match call.func:
            case ast.Attribute(ast.Name(name)):
                places.setdefault(name, []).append(call)
    return places


def _counts_up(module: Module, index: ast.expr) -> bool:
    """Places, not a test: `rows, columns` that are numbers, as far as their names say."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    names = [p.id for p in parts if isinstance(p, ast.Name)]
    return len(parts) > 1 and len(names) == len(parts) and not any(is_mask(n) for n in names)


def _dead_branch(module: Module, node: ast.AST, value: ast.expr) -> bool:
    """Inside `torch.where(value > 0, ..., ...)`: the branch that is not taken still gets a gradient, 0 times infinity."""
    for up in module.parents(node):
        match up:
            case ast.stmt():
                return False
            case ast.Call(func, [test, _, _]) if module.resolve(func) == "torch.where":
                match values_of(module).origin(test):
                    case ast.Compare(left, _, [right]):
                        sides = ((left, right), (right, left))
                        return any(same(a, value) and _is_tiny(module, b) for a, b in sides)
                return False
    return False


def _is_tiny(module: Module, node: ast.expr) -> bool:
    number = module.number(node)
    return (number is not None and abs(number) <= 1e-2) or "eps" in module.segment(node).lower()


def _without_indices(node: ast.AST) -> list[ast.AST]:
    """The nodes of an expression, those of subscripts' indices left out."""
    found = [node]
    for here in found:
        found += [here.value] if isinstance(here, ast.Subscript) else ast.iter_child_nodes(here)
    return found


def _roots(module: Module, node: ast.expr) -> dict[str, int]:
    """The names an expression is made of, with those of their single assignments; each with the line up to which a change of it counts.

    An index is not part of the value: `assert index > 0` says nothing about `reward[index:]`. Nor does what happens to `labels` after
    `mask = labels != -100` change the mask.
    """
    found: dict[str, int] = {}
    queue: list[tuple[ast.AST, int]] = [(node, node.end_lineno or node.lineno)]
    while queue and len(found) < 20:
        part, until = queue.pop()
        for inner in _without_indices(part):
            if not isinstance(inner, ast.Name) or inner.id in found or inner.id == "self":
                continue
            if inner.id not in module.imports:
                found[inner.id] = until
                value = module.value(inner)
                if value is not inner and len(found) < 8:
                    queue.append((value, min(until, getattr(value, "end_lineno", until))))
    return found


@once
def trained_names(module: Module, scope: ast.AST | None) -> dict[str, int]:
    """The names of this function whose values reach a `backward()` in it, each with the last line where one does."""
    found: dict[str, int] = {}
    place = scope or module.tree
    for call in module.index.inside(place, module.method_calls("backward")):
        if module.scope(call) is scope:
            value = call.func.value if isinstance(call.func, ast.Attribute) else None
            given = [value, *call.args] if value is not None else call.args
            for name in names_in(*given):
                found[name] = max(found.get(name, 0), call.lineno)
    if not found:
        return found
    assigned: list[ast.Assign | ast.AugAssign] = [*below(place, ast.Assign)]
    assigned += below(place, ast.AugAssign)
    assigned = [s for s in assigned if module.scope(s) is scope]
    for _ in range(_FLOWS):
        before = len(found)
        for statement in assigned:
            targets = {t.id for t in _targets(statement) if isinstance(t, ast.Name)}
            until = max((found[t] for t in targets & found.keys()), default=0)
            if statement.lineno < until:
                for name in names_in(statement.value):
                    found.setdefault(name, until)
        if len(found) == before:
            break
    return found
