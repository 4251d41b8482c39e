"""Switches that a project never turns on: off in its configurations, in every call, and in how people run it.

A default alone does not say that: whoever writes an option means somebody to use it.
"""

from __future__ import annotations

import ast
import os
import re

from fallline.flow.calls import last_name
from fallline.flow.unused import given_by
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["behind_a_switch_that_is_off"]

_MOST = 24  # files that are looked into
_ON, _OFF = r"(true|yes|on|1)\b", r"(false|no|off|0)\b"


def behind_a_switch_that_is_off(module: Module, line: int) -> bool:
    """Whether a line is in an arm of an `if` that only such a switch leads to."""
    return any(
        _never_on(module, name)
        for test in module.all(ast.If)
        if test.lineno < line <= (test.end_lineno or 0)
        for name in _switches(test, line)
    )


def _switches(test: ast.If, line: int) -> list[str]:
    """The names that have to be true where a line is: `if args.amp and epoch > 3`, `if not amp: ... else: HERE`."""
    in_else = bool(test.orelse) and line >= test.orelse[0].lineno
    match test.test:
        case ast.UnaryOp(ast.Not(), asked):
            wanted = [asked] if in_else else []
        case ast.BoolOp(ast.And(), parts):
            wanted = [] if in_else else parts
        case asked:
            wanted = [] if in_else else [asked]
    return [last_name(n) for n in wanted if isinstance(n, ast.Name | ast.Attribute)]


@once
def _never_on(module: Module, name: str) -> bool:
    project = module.project
    if project is None or len(name) < 3:
        return False
    spelled = name.replace("_", "[-_]")
    given = rf"(?i)\b{spelled}\b[\"'`]?[ \t]*(?::[ \t]*bool[ \t]*)?[:=][ \t]*[\"'`]?"
    texts = project.writes(module, name, code=False)
    code = [module.source.text, *(text for _, text in project.naming(module, name))]
    if any(re.search(given + _ON, text) for text in (*texts, *code)):
        return False
    if any(re.search(rf"--{spelled}\b(?![ \t=]+{_OFF})", text) for text in texts):
        return False
    if any(re.search(rf"{spelled}[\"'].*(default[ \t]*=[ \t]*True|store_false)", t) for t in code):
        return False
    return (
        any(re.search(given + _OFF, text) for text in texts)
        or _left_off(module, name)
        or _run_without(module, name, code)
    )


def _left_off(module: Module, name: str) -> bool:
    """`def train(model, use_amp=False)`: there are calls, and none of them gives it."""
    for function in module.functions.values():
        defaults = dict(
            zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
        )
        off = [a for a, d in defaults.items() if isinstance(d, ast.Constant) and d.value is False]
        if name not in {a.arg for a in off} or not isinstance(function, ast.FunctionDef):
            continue
        cls = module.class_(function)
        called = cls.name if function.name == "__init__" and cls is not None else function.name
        calls = _calls(module, called)
        inner = cls is not None and function.name != "__init__"
        if calls and not inner and not any(_gives(c, function, name) for c in calls):
            return True
    return False


def _gives(call: ast.Call, function: ast.FunctionDef, name: str) -> bool:
    if Module.has_star(call):
        return True
    names = [a.arg for a in function.args.args]
    made = function.name == "__init__" and names[:1] == ["self"]
    by_position = names[1 : len(call.args) + 1] if made else list(given_by(call, function))
    return name in by_position or any(k.arg == name for k in call.keywords)


def _calls(module: Module, called: str) -> list[ast.Call]:
    project = module.project
    assert project is not None
    paths = [path for path, _ in project.naming(module, called)][:_MOST]
    homes = [module, *(m for p in paths if (m := project.module_at(p)) is not None)]
    return [c for home in homes for c in home.all(ast.Call) if last_name(c) == called]


def _run_without(module: Module, name: str, code: list[str]) -> bool:
    """An option of the parser that is off, in a project that shows how its script is run."""
    option = re.compile(
        rf"add_argument\([^)]*--{name.replace('_', '[-_]')}\b[\"'][^)]*(store_true|default[ \t]*=[ \t]*(False|None))"
    )
    project = module.project
    assert project is not None
    shown = project.writes(module, os.path.basename(module.path), code=False)
    return bool(shown) and any(option.search(text) for text in code)
