"""What a name stands for at the place where it is used, within one file and along straight lines of code.

The numerics rules ask "what is this value?" of expressions that were named on the way. A name that was
assigned more than once is followed to the assignment that surely comes before the use; where a branch or a
loop could have changed it, the answer is "not known", and the rules stay silent.
"""

from __future__ import annotations

import ast
from functools import cached_property, lru_cache
from typing import Any

from fallline.syntax import Module

__all__ = ["Values", "same", "shares_values", "values_of"]

_FOLLOWED = 8  # names in a row; longer chains than this are loops in disguise
_BRANCHES = (ast.If, ast.Try, ast.Match)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# Calls that give back the same model, moved, wrapped or set to a mode.
_MODEL_METHODS = frozenset(
    {
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "half",
        "bfloat16",
        "double",
        "requires_grad_",
        "apply",
    }
)
_MODEL_WRAPPERS = frozenset(
    {
        "DataParallel",
        "DistributedDataParallel",
        "DDP",
        "compile",
        "FullyShardedDataParallel",
        "FSDP",
        "prepare",
    }
)


class Values:
    """The values of one module's names, found as rules ask."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.ranges: dict[int, Any] = {}  # node → its range, each found once

    # -- names -------------------------------------------------------------------------------------------------

    def follow(self, node: ast.expr) -> ast.expr | ast.arg:
        """Through names (and `self.x` set once) to the expression they stand for; itself where that is not known."""
        here = node
        for _ in range(_FOLLOWED):
            found: ast.expr | ast.arg | None = None
            if isinstance(here, ast.Name):
                found = self.definition(here)
            elif (
                isinstance(here, ast.Attribute)
                and isinstance(here.value, ast.Name)
                and here.value.id == "self"
            ):
                found = self.attribute(here)
            elif isinstance(here, ast.NamedExpr):
                found = here.value
            if found is None:
                return here
            if isinstance(found, ast.arg):
                return found
            here = found
        return here

    def definition(self, use: ast.Name) -> ast.expr | ast.arg | None:
        """The expression (or the function's argument) this use of a name surely stands for."""
        scope = self.module.scope(use)
        bound = self.module.bindings(use.id, scope)
        while not bound and scope is not None:
            scope = self.module.scope(scope)
            bound = self.module.bindings(use.id, scope)
            if len(bound) > 1:
                return None  # set more than once outside: which one held when this ran is not known
        if len(bound) == 1:
            return _value(self.module, bound[0])
        return self._before(use, bound) if bound else None

    def _before(self, use: ast.Name, bound: list[ast.AST]) -> ast.expr | ast.arg | None:
        """The last binding before the use, where no branch or loop lies between."""
        statement = self.module.statement(use)
        while True:
            up = self.module.parent(statement)
            for previous in reversed(_siblings_before(up, statement)):
                inside = [b for b in bound if _within(b, previous)]
                if not inside:
                    continue
                if isinstance(previous, ast.With | ast.AsyncWith) and all(
                    self.module.parent(self.module.statement(b)) is previous for b in inside
                ):
                    return _value(self.module, inside[-1])
                if isinstance(previous, ast.Assign | ast.AnnAssign):
                    return _value(self.module, inside[-1])
                return None
            if isinstance(up, _LOOPS) and any(_within(b, up) for b in bound):
                return None
            if up is None or isinstance(up, ast.Module | ast.ClassDef | ast.Lambda):
                return None
            if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
                return next((b for b in bound if isinstance(b, ast.arg)), None)
            if not isinstance(up, ast.stmt):
                up = self.module.parent(up)  # an except handler or a match case
                if not isinstance(up, ast.stmt):
                    return None
            statement = up

    def unpacked(self, use: ast.Name) -> tuple[ast.Call, int] | None:
        """The call and the place in its result, for `a, b = f(x)`."""
        bound = self.module.bindings(use.id, self.module.scope(use))
        up = self.module.parent(bound[0]) if len(bound) == 1 else None
        assign = self.module.parent(up) if isinstance(up, ast.Tuple) else None
        if (
            isinstance(up, ast.Tuple)
            and isinstance(assign, ast.Assign)
            and isinstance(assign.value, ast.Call)
        ):
            if not any(isinstance(e, ast.Starred) for e in up.elts):
                return assign.value, [e is bound[0] for e in up.elts].index(True)
        return None

    def attribute(self, node: ast.Attribute) -> ast.expr | None:
        """What `self.x` was set to, where the class sets it exactly once."""
        home = self.module.class_(node)
        if home is None:
            return None
        found = self._attributes.get((id(home), node.attr), [])
        return found[0] if len(found) == 1 and not isinstance(found[0], ast.Attribute) else None

    @cached_property
    def _attributes(self) -> dict[tuple[int, str], list[ast.expr]]:
        """Class and attribute → the values of `self.x = value`."""
        found: dict[tuple[int, str], list[ast.expr]] = {}
        for target in self.module.all(ast.Attribute):
            if (
                isinstance(target.ctx, ast.Store)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ):
                cls, up = self.module.class_(target), self.module.parent(target)
                if cls is not None:
                    value = up.value if isinstance(up, ast.Assign | ast.AnnAssign) else None
                    found.setdefault((id(cls), target.attr), []).append(value or target)
        return found

    # -- across calls ------------------------------------------------------------------------------------------

    def calls_of(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Call]:
        """Calls in this file of a function, of a method by its name, or of an object whose forward this is."""
        cls = self.module.parent(function)
        calls = self._calls.get(function.name, [])
        if not isinstance(cls, ast.ClassDef):
            return [c for c in calls if isinstance(c.func, ast.Name)]
        return self._instance_calls(cls) if function.name in {"forward", "__call__"} else calls

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        """By the plain name that is called, or the last part of it."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.module.all(ast.Call):
            func = call.func
            name = (
                func.id
                if isinstance(func, ast.Name)
                else func.attr
                if isinstance(func, ast.Attribute)
                else ""
            )
            found.setdefault(name, []).append(call)
        return found

    def passed(self, argument: ast.arg) -> list[ast.expr]:
        """What the calls in this file pass for this argument; empty where one of them cannot be seen."""
        function = self.module.enclosing(argument, ast.FunctionDef)
        if function is None:
            return []
        names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
        position = names.index(argument.arg) if argument.arg in names else -1
        static = any(
            isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list
        )
        if isinstance(self.module.parent(function), ast.ClassDef) and not static:
            position -= 1
        if position < 0:
            return []
        found = []
        for call in self.calls_of(function):
            value = self.module.argument(call, position, argument.arg)
            if value is None or self.module.has_star(call):
                return []
            found.append(value)
        return found

    def _instance_calls(self, cls: ast.ClassDef) -> list[ast.Call]:
        """Calls of an instance of this class: `criterion(...)` after `criterion = Criterion()`."""
        names: set[str] = set()
        for made in self._calls.get(cls.name, ()):
            up = self.module.parent(made)
            if isinstance(up, ast.Assign) and len(up.targets) == 1:
                target = up.targets[0]
                if isinstance(target, ast.Name):
                    names.add(target.id)
                elif isinstance(target, ast.Attribute):
                    names.add(target.attr)
        return [call for name in sorted(names) for call in self._calls.get(name, ())]

    def model(self, callee: ast.expr) -> ast.expr:
        """The construction behind a callable: `model` → `Net()`, through `.to(device)`, DDP and the like."""
        here: ast.expr = callee
        for _ in range(_FOLLOWED):
            found = self._construction(here) if isinstance(here, ast.Name) else self.follow(here)
            if isinstance(found, ast.arg):
                sources = self.passed(found)
                if len(sources) != 1:
                    return here
                found = sources[0]
            if isinstance(found, ast.Call):
                inner = _unwrapped(found)
                if inner is None:
                    return found
                found = inner
            if found is here:
                return here
            here = found
        return here

    def _construction(self, name: ast.Name) -> ast.expr | ast.arg:
        """Like `definition`, but `model = model.to(device)` and `model = DDP(model)` do not count as another value."""
        scope = self.module.scope(name)
        bound = self.module.bindings(name.id, scope) or self.module.bindings(name.id, None)
        made = []
        for binding in bound:
            value = _value(self.module, binding)
            inner = _unwrapped(value) if isinstance(value, ast.Call) else None
            while isinstance(inner, ast.Call):
                inner = _unwrapped(inner)
            if not (isinstance(inner, ast.Name) and inner.id == name.id):
                made.append(value)
        return made[0] if len(made) == 1 and made[0] is not None else name


def _unwrapped(call: ast.Call) -> ast.expr | None:
    """The model inside `model.to(device)` or `DDP(model)`; None where the call is something else."""
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr in _MODEL_METHODS:
        return func.value
    last = (
        func.attr
        if isinstance(func, ast.Attribute)
        else func.id
        if isinstance(func, ast.Name)
        else ""
    )
    return call.args[0] if last in _MODEL_WRAPPERS and call.args else None


def _value(module: Module, binding: ast.AST) -> ast.expr | ast.arg | None:
    """The expression a binding gives its name; None for loop targets, unpacked calls, `+=` and the like."""
    if isinstance(binding, ast.arg):
        return binding
    up = module.parent(binding)
    if isinstance(up, ast.Assign) and any(t is binding for t in up.targets):
        return up.value
    if isinstance(up, ast.AnnAssign | ast.NamedExpr) and up.target is binding:
        return up.value
    if isinstance(up, ast.Tuple):
        assign = module.parent(up)
        if isinstance(assign, ast.Assign) and isinstance(assign.value, ast.Tuple):
            places = [i for i, e in enumerate(up.elts) if e is binding]
            if places and len(assign.value.elts) == len(up.elts):
                return assign.value.elts[places[0]]
    return None


def _siblings_before(up: ast.AST | None, statement: ast.stmt) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, None)
        if isinstance(block, list) and statement in block:
            return block[: block.index(statement)]
    return []


def _within(node: ast.AST, statement: ast.stmt) -> bool:
    line = getattr(node, "lineno", 0)
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two expressions are written alike. Not by ast.dump, which recurses and reads both to the end."""
    pairs: list[tuple[object, object]] = [(a, b)]
    while pairs:
        left, right = pairs.pop()
        if left.__class__ is not right.__class__:
            return False
        if isinstance(left, ast.AST):
            pairs += [
                (getattr(left, f, None), getattr(right, f, None))
                for f in left._fields
                if f != "ctx"
            ]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif left != right:
            return False
    return True


@lru_cache(maxsize=8)
def values_of(module: Module) -> Values:
    """The values of a module, shared by all rules that look at it."""
    return Values(module)


def shares_values(module: Module, left: ast.expr, right: ast.expr) -> bool:
    """Whether both sides are made from the same value, directly or one name further."""

    def roots(side: ast.expr) -> set[str]:
        found = {n.id: n for n in ast.walk(side) if isinstance(n, ast.Name)}
        for name in list(found.values()):
            behind = values_of(module).definition(name)
            if isinstance(behind, ast.expr):
                found |= {n.id: n for n in ast.walk(behind) if isinstance(n, ast.Name)}
        return set(found) - set(module.imports)

    return not roots(left).isdisjoint(roots(right))
