"""Code that was pasted into a question without fences, and fragments of a loop whose head was not pasted."""

from __future__ import annotations

import ast
import re
import textwrap

from fallline.syntax.nodes import below

__all__ = ["in_a_loop", "unfenced"]

_WORDS = r"(?:import|from|def|class|return|with|for|while|if|elif|else|try|except|@\w)\b[^\n]*[:\w)]\s*(?:#.*)?$"
_STATEMENT = re.compile(
    rf"\s*(?:{_WORDS}|[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=]|[A-Za-z_][\w.]*\(|\(\w)"
)
_FEWEST = 3  # fewer lines may be prose, or one line of a traceback
_LOOKED_AT = 20_000


def unfenced(question: str) -> str:
    """The longest run of lines that look like statements, where it parses as Python; else nothing."""
    if _only_code(question[:_LOOKED_AT]):
        return question[:_LOOKED_AT].rstrip()
    runs: list[list[str]] = [[]]
    for line in question[:_LOOKED_AT].splitlines():
        if _STATEMENT.match(line) or (runs[-1] and (line[:1].isspace() or not line.strip())):
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    if sum(bool(line.strip()) for line in longest) < _FEWEST:
        return ""
    text = "\n".join(longest)
    return text.rstrip() if _parsed(text) is not None else ""


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _only_code(question: str) -> bool:
    """Whether a question is nothing but Python, of however few lines. `loss = nan` also parses: only a method called or an attribute set is code."""
    if "." not in question or (tree := _parsed(question)) is None:
        return False
    return any(
        (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
        for node in ast.walk(tree)
    )


def in_a_loop(code: str) -> str:
    """The head of the loop that a fragment is the inside of: it calls `backward` or a `step`, and neither loops nor defines anything. Nothing for other code."""
    tree = _parsed(code)
    if tree is None or below(tree, ast.For, ast.While, ast.FunctionDef, ast.ClassDef):
        return ""
    called = {
        node.func.attr for node in below(tree, ast.Call) if isinstance(node.func, ast.Attribute)
    }
    if not called & {"backward", "step"}:
        return ""
    counted = next((left for left in _counted(tree)), "_")
    return f"for {counted}, batch in enumerate(loader):"


def _counted(tree: ast.AST) -> list[str]:
    """The names that a remainder is taken of: `i` in `(i + 1) % k`."""
    return [
        name.id
        for node in below(tree, ast.BinOp)
        if isinstance(node.op, ast.Mod)
        for name in below(node.left, ast.Name)
    ]
