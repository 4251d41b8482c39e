"""What a loss has been divided by, where it is written in one function: a term that is added after the division, and a second one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name, names_in
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of, written

__all__ = ["added_undivided", "divided_again", "items_ignored"]

_ITEMS = (
    "num_items_in_batch"  # the tokens of the whole accumulation window, as the Trainer counts them
)
# Where the author has decided who divides.
_SETTLES = re.compile(
    r"model_accepts_loss_kwargs|loss_is_scaled_for_ga|compute_loss_func|gradient_accumulation_steps"
)
_PARTS = frozenset({"split", "chunk", "unbind", "tensor_split"})


def added_undivided(module: Module) -> Iterator[ast.stmt]:
    """In `compute_loss`: a term that is added to a loss which is already divided by the tokens of the whole window."""
    for function in module.all(ast.FunctionDef):
        asked = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        if function.name != "compute_loss" or _ITEMS not in asked:
            continue
        divided = {
            written(t)
            for s in below(function, ast.Assign)
            if _divides_by_items(s.value)
            for t in s.targets
        }
        for statement in ast.walk(function):
            term = _added(statement)
            if term is None or term[0] not in divided or not _is_a_loss(term[1]):
                continue
            if not any(_counts_items(function, n) for n in names_in(term[1]) - {term[0]}):
                assert isinstance(statement, ast.stmt)
                yield statement


def items_ignored(module: Module) -> Iterator[ast.FunctionDef]:
    """A `compute_loss` of the Trainer's that computes a loss of its own and never reads the number of tokens it is given."""
    for cls in module.classes.values():
        trainer = any(
            b.startswith("transformers.") and b.endswith("Trainer") for b in module.bases(cls)
        )
        for method in (m for m in methods_of(cls) if m.name == "compute_loss"):
            asked = {a.arg for a in (*method.args.args, *method.args.kwonlyargs)}
            if not trainer or _ITEMS not in asked or _ITEMS in names_in(*method.body):
                continue
            if not _SETTLES.search(module.segment(cls)) and _own_loss(method):
                yield method


def _own_loss(method: ast.FunctionDef) -> bool:
    """Not the Trainer's or the model's: a function of its own makes it."""
    text = written(method)
    return "super().compute_loss" not in text and re.search(r"self\.\w*loss\w*\(", text) is not None


def _divides_by_items(value: ast.expr) -> bool:
    return any(
        isinstance(n.op, ast.Div) and _ITEMS in names_in(n.right) for n in below(value, ast.BinOp)
    )


def _added(statement: ast.AST) -> tuple[str, ast.expr] | None:
    """`loss` and `x` of `loss = loss + x`, `loss += x`."""
    match statement:
        case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(same), ast.Add(), term)) if (
            name == same
        ):
            return name, term
        case ast.AugAssign(ast.Name(name), ast.Add(), term):
            return name, term
    return None


def _is_a_loss(term: ast.expr) -> bool:
    return "loss" in written(term).lower()


def _counts_items(function: ast.FunctionDef, name: str) -> bool:
    """Whether some assignment of this name knows the number of tokens, or it comes from a call that was given it."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets, value) if any(name in names_in(t) for t in targets):
                if _ITEMS in names_in(value):
                    return True
    return False


def divided_again(module: Module) -> Iterator[ast.BinOp]:
    """`x = x / n`, and later parts of x over the same parts of n."""
    for division in module.all(ast.BinOp):
        match division, module.parent(division):
            case (
                ast.BinOp(ast.Name(same), ast.Div(), ast.Name(count)),
                ast.Assign([ast.Name(name)]) as statement,
            ) if name == same:
                yield from _second(module, statement, name, count)


def _second(module: Module, first: ast.Assign, name: str, count: str) -> Iterator[ast.BinOp]:
    scope = module.scope(first)
    above, below = _parts(module, first, name), _parts(module, first, count)
    for node in module.all(ast.BinOp):
        match node:
            case ast.BinOp(ast.Name(left), ast.Div(), ast.Name(right)):
                later = node.lineno > first.lineno and module.scope(node) is scope
                whole = (left, right) == (name, count)
                if (
                    later
                    and not whole
                    and left in above
                    and right in below
                    and not _excluded(module, first, node)
                ):
                    yield node


def _parts(module: Module, first: ast.Assign, name: str) -> set[str]:
    """The name and what it is cut into afterwards: `a, b = x.split(n)`."""
    found = {name}
    for statement in module.all(ast.Assign):
        if module.scope(statement) is not module.scope(first) or statement.lineno < first.lineno:
            continue
        match statement.value:
            case ast.Call(ast.Attribute(ast.Name(of))) as call if (
                of in found and last_name(call) in _PARTS
            ):
                found |= {n for t in statement.targets for n in names_in(t)}
            case ast.Subscript(ast.Name(of)) if of in found:
                found |= {n for t in statement.targets for n in names_in(t)}
    return found


def _excluded(module: Module, first: ast.AST, node: ast.AST) -> bool:
    """The two are in opposite branches of the same test."""
    tests = {module.segment(up.test) for up in module.parents(first) if isinstance(up, ast.If)}
    child: ast.AST = node
    for up in module.parents(node):
        if isinstance(up, ast.If | ast.IfExp):
            other = up.orelse if isinstance(up.orelse, list) else [up.orelse]
            if child in other and module.segment(up.test) in tests:
                return True
        child = up
    return False
