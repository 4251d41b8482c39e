"""The statements of the user's own loop that lead from the model call to the backward, ready to be run once more.

A replay must not repeat what the loop does besides computing the loss. So only the statements that the loss depends on are
taken: assignments it needs, in-place changes of what it needs, and the model calls themselves; printing, logging,
counting and clearing are left out. Where that is not clear, there is no region and no replay.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fallline.replay.once import once_only
from fallline.syntax.nodes import below, names_read

__all__ = ["Region", "Spot", "region"]

_PURE_CALLS = frozenset({"range", "zip", "enumerate", "len", "reversed", "list", "tuple", "sorted"})
_PURE_METHODS = frozenset(
    {
        "chunk",
        "split",
        "unbind",
        "items",
        "values",
        "keys",
        "size",
        "shape",
        "parameters",
        "modules",
    }
)
_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Global, ast.Nonlocal, ast.Delete)
_YIELDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_BLOCKS = ("body", "orelse", "finalbody")

Spot = tuple[
    int, int
]  # line and column: one line may hold several statements, `y = model(x); n += 1`


@dataclass
class Region:
    """Compiled statements, and the attributes and items they assign, which have to be put back afterwards."""

    code: Any
    targets: list[tuple[str, str]] = field(
        default_factory=list
    )  # (expression of the object, attribute)
    missing: str = ""


def region(
    path: str,
    first: Spot,
    last: Spot,
    calls: Iterable[Spot],
    names: dict[str, Any],
    wanted: str = "",
    outside: dict[str, Any] | None = None,
) -> Region:
    """From the statement at `first` to the one at `last`; `calls` are the model calls, `outside` holds the global names.

    With `wanted`: what that name needs, without the last statement itself.
    """
    source = "".join(linecache.getlines(path))
    if not source:
        return Region(None, missing="the source file is not there")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Region(None, missing="the source file has changed")
    block = _common_block(tree, first, last)
    if block is None:
        return Region(None, missing="the model call and the backward are not in one block")
    chosen = [s for s in block if _begin(s) <= last and _end(s) >= first]
    if any(below(s, *_YIELDING) for s in chosen):
        return Region(None, missing="the code between model call and backward yields")
    slicer = _Slicer(set(calls), last, names, outside or {})
    slicer.counters = _counters(chosen, names)
    slicer.written = Counter(name for s in chosen for name in _stored(s))
    if wanted:
        slicer.needed, slicer.ends_at = {wanted}, (0, 0)
    kept = slicer.block(chosen)
    if slicer.refused:
        return Region(None, missing=slicer.refused)
    module = ast.Module(kept, [])
    ast.fix_missing_locations(module)
    try:
        code = compile(module, path, "exec")
    except (SyntaxError, ValueError) as error:
        return Region(None, missing=f"the code cannot be run again: {error}")
    targets = [
        (ast.unparse(n.value), n.attr)
        for s in kept
        for n in below(s, ast.Attribute)
        if isinstance(n.ctx, ast.Store) and not below(n, ast.Call)
    ]
    return Region(code, targets)


def _begin(statement: ast.stmt) -> Spot:
    return statement.lineno, statement.col_offset + 1


def _end(statement: ast.stmt) -> Spot:
    return statement.end_lineno or statement.lineno, (statement.end_col_offset or 0) + 1


def _holds(statement: ast.stmt, spot: Spot) -> bool:
    return _begin(statement) <= spot <= _end(statement)


def _common_block(tree: ast.Module, first: Spot, last: Spot) -> list[ast.stmt] | None:
    """The innermost block whose statements cover both places."""
    best: list[ast.stmt] | None = None
    for node in ast.walk(tree):
        for name in (*_BLOCKS, "handlers"):
            block = getattr(node, name, None)
            if not isinstance(block, list) or not block or not isinstance(block[0], ast.stmt):
                continue
            if all(any(_holds(s, spot) for s in block) for spot in (first, last)):
                best = (
                    block  # walk goes outside in: the last one found is the innermost on this path
                )
    return best


class _Slicer:
    """Keeps what the last statement needs, walking backwards."""

    def __init__(
        self, calls: set[Spot], last: Spot, names: dict[str, Any], outside: dict[str, Any]
    ) -> None:
        self.calls = calls
        self.scope = {**outside, **names}
        self.loops = 0  # around the statement in question
        self.written: Counter[str] = Counter()  # how often each name is
        self.last = last
        self.names = names
        self.ends_at = last  # the statement at this place is always kept
        self.needed: set[str] = set()
        self.counters: set[str] = set()
        self.refused = ""

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for statement in reversed(statements):
            if _begin(statement) > self.last or isinstance(statement, _LEAVING):
                continue
            found = self._keep(statement)
            if found is not None:
                kept.append(found)
        return kept[::-1]

    def _keep(self, statement: ast.stmt) -> ast.stmt | None:
        if any(hasattr(statement, name) for name in _BLOCKS) and not isinstance(
            statement, ast.FunctionDef | ast.ClassDef
        ):
            return self._compound(statement)
        ends = _holds(statement, self.ends_at)
        calls = any(_holds(statement, spot) for spot in self.calls)
        writes = {*_stored(statement), *_attribute_roots(statement)}
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            writes = {statement.name}
        if not (ends or calls or writes & self.needed or self._in_place(statement)):
            return None
        if not (ends or calls) and _counts(statement) in self.counters:
            return (
                None  # it holds already what it came to: counting again would make it one too many
            )
        once = once_only(statement, self.scope)
        if once:
            if not (ends or calls or self.loops) and all(self.written[n] == 1 for n in writes):
                return None  # what it took is still there
            self.refused = (
                self.refused or f"{once} between model call and backward must not be done twice"
            )
            return None
        self._needs(statement)
        return statement

    def _compound(self, statement: Any) -> ast.stmt | None:
        loop = isinstance(statement, ast.For | ast.While)
        if loop:
            inside = any(_holds(statement, spot) for spot in (*self.calls, self.last))
            if inside and not self._repeatable(statement):
                self.refused = (
                    self.refused or "the model is called in a loop that cannot be run again"
                )
                return None
        kept = False
        self.loops += loop
        for name in reversed(_BLOCKS):
            block = getattr(statement, name, None)
            if isinstance(block, list):
                found = self.block(block)
                kept = kept or bool(found)
                setattr(statement, name, found)
        self.loops -= loop
        if not kept:
            return None
        if not statement.body:
            statement.body = [ast.Pass()]
        for name in ("test", "iter", "items", "target"):
            part = getattr(statement, name, None)
            for node in part if isinstance(part, list) else [part] if part is not None else ():
                self._needs(node)
        return statement  # type: ignore[no-any-return]

    def _repeatable(self, loop: Any) -> bool:
        if isinstance(loop, ast.While):
            return False
        for call in below(loop.iter, ast.Call):
            match call.func:
                case ast.Name(name) if name not in _PURE_CALLS:
                    return False
                case ast.Attribute(attr=name) if name not in _PURE_METHODS:
                    return False
        names = {n.id for n in below(loop.iter, ast.Name)} - _PURE_CALLS
        return all(_listlike(self.names.get(n)) for n in names)

    def _in_place(self, statement: ast.stmt) -> bool:
        """`loss.mul_(0.5)`, `hidden.register_hook(f)`: changes something that is needed."""
        match statement:
            case (
                ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method)))
                | ast.Assign(value=ast.Call(ast.Attribute(ast.Name(name), method)))
            ) if name in self.needed:
                # losses collected in a list are there as well: the replay works on copies of lists
                in_place = method.endswith("_") and not method.startswith("_") and method != "zero_"
                return in_place or method in {"append", "extend", "register_hook"}
        return False

    def _needs(self, node: ast.AST) -> None:
        self.needed |= {n.id for n in names_read(node)}
        match node:
            case ast.AugAssign(ast.Name(name)):
                self.needed.add(name)


def _stored(node: ast.AST) -> list[str]:
    """The plain names that a piece of code assigns, once for each time."""
    return [n.id for n in below(node, ast.Name) if isinstance(n.ctx, ast.Store)]


def _counters(statements: list[ast.stmt], names: dict[str, Any]) -> set[str]:
    """Plain numbers that are only ever counted on here: `n += 1`, `self.step += 1`."""
    found: set[str] = set()
    written: set[str] = set()
    for node in (n for s in statements for n in ast.walk(s)):
        counted = _counts(node)
        if counted:
            found.add(counted)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.NamedExpr | ast.withitem):
            written |= {
                ast.unparse(n)
                for n in below(node, ast.Name, ast.Attribute)
                if isinstance(n.ctx, ast.Store)
            }
    return {name for name in found - written if isinstance(_value(name, names), int | float)}


def _counts(node: ast.AST) -> str:
    """The name or attribute that an augmented assignment writes; empty for anything else."""
    match node:
        case ast.AugAssign((ast.Name() | ast.Attribute()) as target):
            return ast.unparse(target)
    return ""


def _value(name: str, names: dict[str, Any]) -> Any:
    """What a name, or an attribute of one, holds; only what is stored there, so that no property is run."""
    root, *attributes = name.split(".")
    value = names.get(root)
    for attribute in attributes:
        value = getattr(value, "__dict__", {}).get(attribute)
    return value


def _attribute_roots(statement: ast.stmt) -> set[str]:
    """`self.loss = ...` writes to self."""
    found = set()
    for node in below(statement, ast.Attribute, ast.Subscript):
        if isinstance(node.ctx, ast.Store):
            here: ast.AST = node
            while isinstance(here, ast.Attribute | ast.Subscript):
                here = here.value
            if isinstance(here, ast.Name):
                found.add(here.id)
    return found


def _listlike(value: Any) -> bool:
    import torch

    return isinstance(value, int | list | tuple | dict | range | torch.Tensor | torch.nn.ModuleList)
