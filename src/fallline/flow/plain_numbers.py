"""Methods of a project that hand out plain numbers: what an output of its own class says for the log."""

from __future__ import annotations

import ast
import re

from fallline.flow.calls import last_name, returned
from fallline.flow.of_tensors import is_of_tensors
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["gives_numbers"]

_NUMBERS = frozenset({"float", "int", "str", "bool", "len"})
_TAKEN_OUT = frozenset({"item", "tolist", "detach", "numpy"})
_SAYS = re.compile(
    r"(?i)^['\"]?(dict|mapping)\[\w+, ?(float|int|bool|str)\]['\"]?$|^(float|int|bool|str)$"
)


@once
def gives_numbers(module: Module, name: str) -> bool:
    """Whether every method of this name that the project defines gives numbers, or a dict of them: `{k: float(v) for ...}`."""
    if is_of_tensors(name):
        return False
    begins = f"def {name}("
    homes: list[Module | None] = [module] if begins in module.source.text else []
    project = module.project
    for path, text in project.naming(module, name) if project is not None else ():
        if project is not None and begins in text:
            homes.append(project.module_at(path))
    methods = [
        (home, node)
        for home in homes
        if home is not None
        for node in home.all(ast.FunctionDef)
        if node.name == name and home.class_(node) is not None
    ]
    return bool(methods) and all(_numbers(home, method) for home, method in methods)


def _numbers(module: Module, method: ast.FunctionDef) -> bool:
    if method.returns is not None and _SAYS.match(ast.unparse(method.returns)):
        return True
    given = returned(module, method)
    return bool(given) and all(map(_a_number, given))


def _a_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.DictComp(value=each) | ast.ListComp(each):
            return _a_number(each)
        case ast.Dict(values=values) | ast.List(values) | ast.Tuple(values):
            return bool(values) and all(map(_a_number, values))
        case ast.Call():
            return last_name(value) in _NUMBERS | _TAKEN_OUT
    return False
