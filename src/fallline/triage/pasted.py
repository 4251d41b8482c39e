"""Code that was pasted into a question without fences."""

from __future__ import annotations

import ast
import re
import textwrap

__all__ = ["unfenced"]

_WORDS = r"(?:import|from|def|class|return|with|for|while|if|elif|else|try|except|@\w)\b[^\n]*[:\w)]\s*(?:#.*)?$"
_STATEMENT = re.compile(
    rf"\s*(?:{_WORDS}|[A-Za-z_][\w.\[\], ]*\s*[-+*/]?=[^=]|[A-Za-z_][\w.]*\(|\(\w)"
)
_FEWEST = 3  # fewer lines may be prose, or one line of a traceback
_LOOKED_AT = 20_000


def unfenced(question: str) -> str:
    """The longest run of lines that look like statements, where it parses as Python; else nothing."""
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
    try:
        ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return text.rstrip()
