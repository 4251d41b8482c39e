"""Where a value comes from and who uses it, within one file and along straight lines of code.

A name that was assigned more than once is followed to the assignment that surely comes before the use; where a branch
or a loop could have changed it, the answer is "not known".
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Literal

from fallline.flow.calls import last_name, names_in, of_self, returned, same
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of

__all__ = ["Values", "default_of", "shares_values", "siblings_before", "values_of"]

_FOLLOWED = 8  # names in a row; longer chains than this are loops in disguise
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
Def = ast.FunctionDef | ast.AsyncFunctionDef
# Calls that give back the same model, moved, wrapped or set to a mode.
_MODEL_METHODS = frozenset(
    "to cuda cpu train eval float half bfloat16 double requires_grad_ apply".split()
)
_MODEL_WRAPPERS = frozenset(
    "DataParallel DistributedDataParallel DDP compile FullyShardedDataParallel FSDP prepare".split()
)


class Values:
    """The values of one module's names, found as rules ask."""

    def __init__(self, module: Module) -> None:
        self.module = module

    # -- backwards: what a name stands for ---------------------------------------------------------------------

    def origin(self, node: ast.expr) -> ast.expr | ast.arg:
        """Through names (and `self.x` set once) to the expression they stand for; itself where that is not known."""
        here = node
        for _ in range(_FOLLOWED):
            found: ast.expr | ast.arg | None
            match here:
                case ast.Name():
                    found = self.definition(here)
                case ast.Attribute(ast.Name("self")):
                    found = self.attribute(here)
                case ast.NamedExpr():
                    found = here.value
                case ast.Subscript(slice=ast.Constant(str(key))):
                    found = self.entry(here, key)
                case ast.Attribute(ast.Name() | ast.Call()):
                    found = self.field(here)
                case _:
                    found = None
            if found is None:
                return here
            if isinstance(found, ast.arg):
                return found
            here = found
        return here

    def through(self, node: ast.expr, inner: Callable[[ast.expr], ast.expr | None]) -> ast.expr | ast.arg:  # fmt: skip
        """As `origin`, and on through what `inner` finds inside the expression. Bounded: in a loop, `x = x.view(-1)` comes from itself."""
        here = self.origin(node)
        for _ in range(_FOLLOWED):
            found = inner(here) if isinstance(here, ast.expr) else None
            if found is None:
                break
            here = self.origin(found)
        return here

    def entry(self, use: ast.Subscript, key: str) -> ast.expr | None:
        """What `losses["total"]` surely is: stored there before, or written in the dict that `losses` is."""
        stored = self._stored(use, use.value.id, key) if isinstance(use.value, ast.Name) else None
        if stored is not None:
            return stored or None
        match self._whole(use.value):
            case ast.Dict(keys, values):
                named = {k.value: v for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)}  # fmt: skip
                return named.get(key) if len(named) == len(keys) else None
            case ast.Call(ast.Name("dict"), [], keywords):
                return next((k.value for k in keywords if k.arg == key), None)
        return None

    def field(self, use: ast.Attribute) -> ast.expr | None:
        """What `out.logits` is, of a record of this file that is built where `out` comes from."""
        match self._whole(use.value):
            case ast.Call(ast.Name(name)) as made if cls := self.module.classes.get(name):
                fields = [s.target.id for s in cls.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]  # fmt: skip
                if use.attr in fields and not any(m.name == "__init__" for m in methods_of(cls)):
                    return self.module.argument(made, fields.index(use.attr), use.attr)
        return None

    def _whole(self, node: ast.expr) -> ast.expr | ast.arg:
        """What a name stands for, and what the function of this file returns that made it."""
        here = self.origin(node)
        inner = self.result(here) if isinstance(here, ast.Call) else None
        return self.origin(inner) if inner is not None else here

    def _stored(self, use: ast.expr, name: str, key: str) -> ast.expr | Literal[False] | None:
        """`value` of `name[key] = value` before the use; False where something else there may have changed the entry."""
        statement = self.module.statement(use)
        while True:
            up = self.module.parent(statement)
            for previous in reversed(siblings_before(up, statement)):
                match previous:
                    case ast.Assign([ast.Subscript(ast.Name(at), ast.Constant(k))], value) if (
                        at == name and k == key
                    ):
                        return value
                    case ast.Assign([ast.Name(at)]) if at == name:
                        return None
                if _changes(previous, name, key):
                    return False
            if isinstance(up, ast.For | ast.While) and _changes(up, name, key):
                return False
            if not isinstance(up, ast.stmt) or isinstance(up, ast.FunctionDef | ast.ClassDef):
                return None
            statement = up

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
            return self.bound_to(bound[0])
        last = self._before(use, bound) if bound else None
        return self.bound_to(last) if last is not None else None

    def bound_to(self, binding: ast.AST) -> ast.expr | ast.arg | None:
        """The expression a binding gives its name; None for loop targets, unpacked calls, `+=` and the like."""
        match binding, self.module.parent(binding):
            case ast.arg(), _:
                return binding
            case _, ast.Assign(targets, value) if any(t is binding for t in targets):
                return value
            case _, (ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target, value)) if (
                target is binding
            ):
                return value
            case _, ast.Tuple(elts) as up:
                match self.module.parent(up):
                    case ast.Assign(value=ast.Tuple(given)) if len(given) == len(elts):
                        return given[[e is binding for e in elts].index(True)]
        return None

    def _before(self, use: ast.Name, bound: list[ast.AST]) -> ast.AST | None:
        """The last binding before the use, where no branch or loop lies between."""
        statement = self.module.statement(use)
        while True:
            up = self.module.parent(statement)
            for previous in reversed(siblings_before(up, statement)):
                inside = [b for b in bound if _within(b, previous)]
                if inside:
                    return inside[-1] if self._sure(previous, inside) else None
            match up:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    return next((b for b in bound if isinstance(b, ast.arg)), None)
                case ast.For() | ast.AsyncFor() | ast.While() if any(_within(b, up) for b in bound):
                    return None
                case ast.ExceptHandler() | ast.match_case():
                    up = self.module.parent(up)
                case None | ast.Module() | ast.ClassDef() | ast.Lambda():
                    return None
            if not isinstance(up, ast.stmt):
                return None
            statement = up

    def _sure(self, statement: ast.stmt, inside: list[ast.AST]) -> bool:
        """Whether a statement binds a name whenever it runs: an assignment, also right inside a `with`."""
        match statement:
            case ast.Assign() | ast.AnnAssign():
                return True
            case ast.With() | ast.AsyncWith():
                homes = (self.module.parent(self.module.statement(b)) for b in inside)
                return all(home is statement for home in homes)
        return False

    def in_one_branch(self, use: ast.Name) -> list[tuple[ast.If, ast.expr]]:
        """What a name was last assigned inside the `if`s before this use in its block, each with its `if`."""
        statement = self.module.statement(use)
        found: list[tuple[ast.If, ast.expr]] = []
        for previous in reversed(siblings_before(self.module.parent(statement), statement)):
            inside = [
                b
                for b in self.module.bindings(use.id, self.module.scope(use))
                if _within(b, previous)
            ]
            match previous:
                case ast.If(body=body, orelse=orelse) if inside:
                    for arm in (body, orelse):
                        last = [b for b in inside if self.module.statement(b) in arm][-1:]
                        values = [self.bound_to(b) for b in last]
                        found += [(previous, v) for v in values if isinstance(v, ast.expr)]
                case _ if inside:
                    break
        return found

    def unpacked(self, use: ast.Name) -> tuple[ast.Call, int] | None:
        """The call and the place in its result, for `a, b = f(x)`."""
        bound = self.module.bindings(use.id, self.module.scope(use))
        last = bound[0] if len(bound) == 1 else self._before(use, bound) if bound else None
        match self.module.parent(last) if last is not None else None:
            case ast.Tuple(elts) as up:
                match self.module.parent(up):
                    case ast.Assign(value=ast.Call() as call):
                        if not any(isinstance(e, ast.Starred) for e in elts):
                            return call, [e is last for e in elts].index(True)
        return None

    def attribute(self, node: ast.Attribute) -> ast.expr | None:
        """What `self.x` was set to, where the class sets it exactly once, or to the same thing on each device."""
        home = self.module.class_(node)
        found = self._attributes.get((id(home), node.attr), []) if home is not None else []
        one = _agreed(found)
        return one if isinstance(one, ast.expr) and not isinstance(one, ast.Attribute) else None

    @cached_property
    def _attributes(self) -> dict[tuple[int, str], list[ast.expr]]:
        """Class and attribute → the values of `self.x = value`."""
        found: dict[tuple[int, str], list[ast.expr]] = {}
        for target in self.module.all(ast.Attribute):
            if target.ctx.__class__ is not ast.Store or of_self(target) is None:
                continue
            cls = self.module.class_(target)
            if cls is not None:
                value = self.bound_to(target)
                kept = value if isinstance(value, ast.expr) else target
                found.setdefault((id(cls), target.attr), []).append(kept)
        return found

    # -- forwards: who uses it ---------------------------------------------------------------------------------

    def uses(
        self, name: str, scope: ast.AST | None, after: ast.stmt | None = None
    ) -> list[ast.Name]:
        """Where a local name is read in this function, after a statement."""
        first = after.lineno if after is not None else 0
        reads = self._reads.get(name, ())
        return [n for n in reads if n.lineno > first and self.module.scope(n) is scope]

    @cached_property
    def _reads(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for name in self.module.all(ast.Name):
            if isinstance(name.ctx, ast.Load):
                found.setdefault(name.id, []).append(name)
        return found

    def named(self, node: ast.expr) -> tuple[ast.Assign, ast.Name] | None:
        """The statement and the name of `name = node`, also of `name = -node`."""
        up = self.module.parent(node)
        while isinstance(up, ast.UnaryOp):
            up = self.module.parent(up)
        match up:
            case ast.Assign([ast.Name() as name]):
                return up, name
        return None

    # -- across calls ------------------------------------------------------------------------------------------

    def calls_of(self, function: Def) -> list[ast.Call]:
        """Calls in this file of a function, of a method by its name, or of an object whose forward this is."""
        cls = self.module.parent(function)
        calls = self._calls.get(function.name, [])
        if not isinstance(cls, ast.ClassDef):
            return [c for c in calls if isinstance(c.func, ast.Name)]
        if function.name == "__init__":
            return self._calls.get(cls.name, [])
        return self._instance_calls(cls) if function.name in {"forward", "__call__"} else calls

    @property
    def _calls(self) -> dict[str, list[ast.Call]]:
        return self.module.calls_by_last_name

    def passed(self, argument: ast.arg) -> list[ast.expr]:
        """What the calls in this file pass for this argument; empty where one of them cannot be seen."""
        function = self.module.enclosing(argument, ast.FunctionDef)
        names = (
            [a.arg for a in [*function.args.posonlyargs, *function.args.args]] if function else []
        )
        if function is None or argument.arg not in names:
            return []
        static = any(last_name(d) == "staticmethod" for d in function.decorator_list)
        method = isinstance(self.module.parent(function), ast.ClassDef) and not static
        position = names.index(argument.arg) - method
        if position < 0:
            return []
        default = default_of(function, argument)
        found = []
        for call in self.calls_of(function):
            value = self.module.argument(call, position, argument.arg) or default
            if value is None or self.module.has_star(call):
                return []
            found.append(value)
        return found

    def _instance_calls(self, cls: ast.ClassDef) -> list[ast.Call]:
        """Calls of an instance of this class: `criterion(...)` after `criterion = Criterion()`."""
        names: set[str] = set()
        for made in self._calls.get(cls.name, ()):
            match self.module.parent(made):
                case ast.Assign([ast.Name(name) | ast.Attribute(attr=name)]):
                    names.add(name)
        return [call for name in sorted(names) for call in self._calls.get(name, ())]

    def built(self, callee: ast.expr) -> ast.expr:
        """The construction behind a callable: `model` → `Net()`, through `.to(device)`, DDP and the like."""
        here: ast.expr = callee
        for _ in range(_FOLLOWED):
            found = self._construction(here) if isinstance(here, ast.Name) else self.origin(here)
            if isinstance(found, ast.arg):
                sources = self.passed(found)
                if len(sources) != 1:
                    return here
                found = sources[0]
            if isinstance(found, ast.Name) and (part := self.unpacked(found)) is not None:
                found = self.result(*part) or found  # `model, optimizer = build(config)`
            if isinstance(found, ast.Call):
                inner = _unwrapped(found) or self.result(found)
                if inner is None:
                    return found
                found = inner
            if found is here:
                return here
            here = found
        return here

    def result(self, call: ast.Call, element: int | None = None) -> ast.expr | None:
        """What a function or an own method of this file returns where it has one `return`, or one element of the tuple that it returns."""
        function: ast.AST | None = None
        match call.func:
            case ast.Name(name):
                function = self.module.functions.get(name)
            case ast.Attribute(ast.Name("self"), name) if cls := self.module.class_(call):
                function = next((m for m in methods_of(cls) if m.name == name), None)
        if not isinstance(function, ast.FunctionDef) or function.name == "forward":
            return None
        match returned(self.module, function), element:
            case [ast.Tuple(elts)], int() if element < len(elts):
                return elts[element]
            case [value], None if not isinstance(value, ast.Tuple):
                return value
        return None

    def constructed(self, callee: ast.expr) -> ast.Call | None:
        """Like `built`, of what is called, where it is a call: `nn.Softmax(1)` of `nn.Softmax(1)(x)` and of `self.softmax(x)`."""
        made = callee if isinstance(callee, ast.Call) else self.built(callee)
        return made if isinstance(made, ast.Call) else None

    def constructions(self, callee: ast.expr) -> list[ast.Call]:
        """Each construction that may be behind a callable, where an `if` chooses between them; empty where one of them is not a call."""
        match callee:
            case ast.Attribute(ast.Name("self"), name):
                home = self.module.class_(callee)
                found: Sequence[ast.expr | ast.arg | None] = self._attributes.get((id(home), name), [])  # fmt: skip
            case ast.Name(name):
                bound = self.module.bindings(name, self.module.scope(callee))
                bound = bound or self.module.bindings(name, None)
                found = [self.bound_to(b) for b in bound]
            case _:
                found = []
        inner = [_innermost(value) for value in found]
        made = [m for m in inner if isinstance(m, ast.Call)]
        return made if len(made) == len(found) else []

    def _construction(self, name: ast.Name) -> ast.expr | ast.arg:
        """Like `definition`, but `model = model.to(device)` and `model = DDP(model)` do not count as another value."""
        scope = self.module.scope(name)
        bound = self.module.bindings(name.id, scope) or self.module.bindings(name.id, None)
        made = []
        for binding in bound:
            value = self.bound_to(binding)
            inner = _unwrapped(value) if isinstance(value, ast.Call) else None
            while isinstance(inner, ast.Call):
                inner = _unwrapped(inner)
            if not (is_name(inner, name.id)):
                made.append(value)
        one = _agreed(made)
        return one if one is not None else name

    def still_means(self, call: ast.Call, place: ast.AST) -> bool:
        """Whether the names in `call` still have at `place` the values they had where the call is written."""
        if call is place or any(up is place for up in self.module.parents(call)):
            return True
        if any(n is not call for n in below(call, ast.Call)):
            return False  # a model would run twice
        scope = self.module.scope(place)
        if self.module.scope(call) is not scope:
            return False
        first, last = self.module.statement(call).lineno, getattr(place, "lineno", 0)
        return not any(
            first <= getattr(b, "lineno", 0) <= last
            for name in names_in(call)
            for b in self.module.bindings(name, scope)
        )


def default_of(function: Def, argument: ast.arg) -> ast.expr | None:
    """What an argument is where a call does not say."""
    takes = function.args
    given = [*takes.posonlyargs, *takes.args]
    placed = zip(reversed(given), reversed(takes.defaults), strict=False)
    named = zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
    return next((default for one, default in (*placed, *named) if one is argument), None)


def _agreed(values: Sequence[ast.expr | ast.arg | None]) -> ast.expr | ast.arg | None:
    """The one value; of several, the last where all are written alike but for `.cuda()` and the like."""
    if len(values) < 2:
        return values[0] if values else None
    inner: list[ast.AST] = []
    for value in values:
        here = _innermost(value)
        if not isinstance(here, ast.Call):
            return None
        inner.append(here)
    return values[-1] if all(same(inner[0], other) for other in inner[1:]) else None


def _innermost(value: ast.expr | ast.arg | None) -> ast.AST | None:
    """What is moved and wrapped: `Net()` of `DDP(Net().cuda())`."""
    here: ast.AST | None = value
    while isinstance(here, ast.Call) and (within := _unwrapped(here)) is not None:
        here = within
    return here


def _unwrapped(call: ast.Call) -> ast.expr | None:
    """The model inside `model.to(device)` or `DDP(model)`; None where the call is something else."""
    match call.func:
        case ast.Attribute(model, method) if method in _MODEL_METHODS:
            return model
    return call.args[0] if last_name(call) in _MODEL_WRAPPERS and call.args else None


def _changes(statement: ast.stmt, name: str, key: str) -> bool:
    """Whether a statement may give the entry of this dict a different value."""
    for node in below(statement, ast.Subscript, ast.Attribute):
        match node:
            case ast.Subscript(ast.Name(at), index, ast.Store()) if at == name:
                if not isinstance(index, ast.Constant) or index.value == key:
                    return True
            case ast.Attribute(ast.Name(at), "update" | "pop" | "setdefault") if at == name:
                return True
    return False


def siblings_before(up: ast.AST | None, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of the same block that come before this one."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, None)
        if isinstance(block, list) and statement in block:
            return block[: block.index(statement)]
    return []


def _within(node: ast.AST, statement: ast.stmt) -> bool:
    line = getattr(node, "lineno", 0)
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


@lru_cache(maxsize=8)
def values_of(module: Module) -> Values:
    """The values of a module, shared by all rules that look at it."""
    return Values(module)


def shares_values(module: Module, left: ast.expr, right: ast.expr) -> bool:
    """Whether both sides are made from the same value, directly or one name further."""

    def written(side: ast.expr) -> Iterator[str]:
        for name in below(side, ast.Name):
            yield name.id
            behind = values_of(module).definition(name)
            if isinstance(behind, ast.expr):
                yield from names_in(behind)

    return not (set(written(left)) & set(written(right))).issubset(module.imports)
