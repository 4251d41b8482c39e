"""What a replay must not do a second time: take the next batch, step an environment, draw from a random stream for good.

What is in the replayed statements, and in the user's functions that they call, is looked at before; `next` on an
iterator of the user's is also refused while the replay runs.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import random
import sys
from collections.abc import Iterable, Iterator
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any

import torch

from fallline.replay.source import parsed
from fallline.syntax.nodes import below, is_name
from fallline.taps.frames import is_user_file, user_frames

__all__ = ["Once", "once_only", "streams_kept"]

# Of an environment, a queue, a connection, a file, an optimizer.
_METHODS = frozenset(
    {
        "step",
        "reset",
        "popleft",
        "popitem",
        "get_nowait",
        "recv",
        "readline",
        "put",
        "write",
        "writerow",
    }
)
_DEPTH = 4  # of the user's functions that call each other
_TEMPORARY = (lambda it: sys.getrefcount(it))(
    iter(())
)  # what no name holds, in a function's argument


class Once(BaseException):
    """The replay was about to take something that is there only once. Not an Exception: user code must not catch it."""


def once_only(node: ast.AST, names: dict[str, Any], depth: int = 0) -> str:
    """The call in this code that cannot be made twice, in words; empty where there is none."""
    calls = [n for n in below(node, ast.Call)]
    for call in sorted(calls, key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0)):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "backward":
            return ""  # here the replay ends
        if is_name(func, "next"):
            if call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
                return f"next({ast.unparse(call.args[0])})"
        elif isinstance(func, ast.Attribute) and func.attr in _METHODS:
            written = ast.unparse(func)
            if not written.startswith("sys.std"):  # which is silent meanwhile
                return f"{written}()"
        else:
            function = _function(func, names)
            body = _body(function) if function is not None and depth < _DEPTH else None
            if function is not None and body is not None:
                inner = once_only(body, function.__globals__, depth + 1)
                if inner:
                    return inner
    return ""


def _function(node: ast.expr, names: dict[str, Any]) -> FunctionType | None:
    """The user's function or method that is called here; nothing of the user's is run to find it."""
    value: Any = None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = names.get(node.value.id)
        for cls in type(owner).__mro__ if owner is not None else ():
            if node.attr in vars(cls):
                value = vars(cls)[node.attr]
                break
    value = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, FunctionType) and is_user_file(value.__code__.co_filename):
        return value
    return None


def _body(function: FunctionType) -> ast.AST | None:
    code = function.__code__
    tree = parsed(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            if code.co_firstlineno in (node.lineno, *(d.lineno for d in node.decorator_list)):
                return node
    return None


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    """Random streams of Python, NumPy and generators in the user's names continue afterwards where they were; `next` is refused."""
    kept = list(_streams())
    real, mine = builtins.next, get_ident()

    def refusing(it: Any, *default: Any) -> Any:
        caller = sys._getframe().f_back
        # an iterator that no name holds was made by this very expression
        if (
            get_ident() == mine
            and sys.getrefcount(it) > _TEMPORARY
            and caller is not None
            and is_user_file(caller.f_code.co_filename)
        ):
            raise Once("next() would take what the training loop still needs")
        return real(it, *default)

    builtins.next = refusing
    try:
        yield
    finally:
        builtins.next = real
        for restore, state in kept:
            restore(state)


def _streams() -> Iterable[tuple[Any, Any]]:
    yield random.setstate, random.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield numpy.random.set_state, numpy.random.get_state()
    seen: set[int] = set()
    for value in (v for f in user_frames() for v in f.f_locals.values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Generator):
            yield value.set_state, value.get_state()
        elif isinstance(value, random.Random):
            yield value.setstate, value.getstate()
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            yield lambda state, bits=bits: setattr(bits, "state", state), bits.state
