"""The language that is executed on paper, put together: here alone do expressions, calls and statements meet."""

from __future__ import annotations

import ast

from fallline.reader import (
    arguments,
    calls,
    decide,
    expressions,
    functions,
    names,
    statements,
    streams,
)
from fallline.reader.machine import Language

__all__ = ["PYTHON"]

PYTHON = Language(
    statements=statements.STATEMENTS,
    expressions={**expressions.EXPRESSIONS, **decide.TESTS, ast.Call: calls.call},
    attribute=expressions.attribute,
    call=calls.call_value,
    run_function=functions.run_function,
    global_name=names.find,
    instance=arguments.instance,
    given=arguments.given,
    batches=streams.batches,
)
