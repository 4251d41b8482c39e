"""State that is loaded and goes nowhere: into a copy of a state dict, or into the name that the model had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.checkpoints import (
    Loaded,
    Saved,
    called_functions,
    loads,
    role_of_key,
    saves,
    state_of,
)
from fallline.flow.unused import given_by, optional
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name

__all__ = ["forgotten_records", "not_handed_over", "puts_back", "replaced_by_its_state", "updated_in_a_copy"]  # fmt: skip

_LOADS = re.compile(r"load|resum|restor", re.IGNORECASE)
_MEASURED = re.compile(r"(?i)loss|metric|acc|score|reward")


def updated_in_a_copy(module: Module) -> Iterator[ast.Call]:
    """`model.state_dict().update(loaded)` as a statement: the dict is thrown away, the model is as it was."""
    for call in module.method_calls("update"):
        match call, module.parent(call):
            case (
                ast.Call(ast.Attribute(ast.Call(ast.Attribute(attr="state_dict"), [])), [_, *_]),
                ast.Expr(),
            ):
                yield call


def replaced_by_its_state(module: Module) -> Iterator[tuple[ast.Assign, str]]:
    """`self.model = data["model"]`, where `self.model.state_dict()` was saved under that key."""
    states = {
        (key, owner)
        for saved in saves(module)
        for key, value in saved.entries.items()
        if (owner := state_of(value)) is not None
    }
    for loaded in loads(module) if states else ():
        for key, node in loaded.keys.items():
            match module.parent(node):
                case ast.Assign([ast.Attribute(attr=name) | ast.Name(name)]) as statement:
                    if (key, name) in states:
                        yield statement, name


def not_handed_over(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """`resume(path, model, optimizer)` of a function that would restore the scheduler too, where there is one."""
    for call, function, _ in called_functions(module):
        if not _LOADS.search(function.name) or Module.has_star(call):
            continue
        given = given_by(call, function)
        if not any(role_of_key(name) == "optimizer" for name in given):
            continue
        for name in optional(function) - given:
            role = role_of_key(name)
            if role in {"scheduler", "scaler"} and name not in _read_only(function):
                if any(_has(module, call, other, role) for other in _names(module, call)):
                    yield call, role


def forgotten_records(loaded: Loaded, saved: Saved) -> list[str]:
    """`best_acc = 0.0`, where the checkpoint holds the best so far and the next epochs are compared with it."""
    module, scope = loaded.module, loaded.module.scope(loaded.call)
    if saved.module is not module or module.scope(saved.call) is not scope:
        return []
    return [
        key
        for key, value in saved.entries.items()
        if key.startswith("best") and key not in loaded.keys
        if isinstance(value, ast.Name) and _begins_anew(module, value)
    ]


def _begins_anew(module: Module, name: ast.Name) -> bool:
    """Outside the loop it only gets a number, and in the loop something is compared with it."""
    scope = module.scope(name)
    bound = module.bindings(name.id, scope)
    outside = [module.parent(b) for b in bound if not module.in_loop(b)]
    numbers = [
        a for a in outside if isinstance(a, ast.Assign) and module.number(a.value) is not None
    ]
    if not numbers or len(numbers) < len(outside):
        return False
    return any(
        is_name(n, name.id) and module.in_loop(n)
        for test in module.all(ast.Compare)
        if module.scope(test) is scope
        for n in (test.left, *test.comparators)
    )


def _read_only(function: ast.FunctionDef) -> set[str]:
    """Parameters that the function never uses."""
    used = {n.id for n in below(function, ast.Name) if isinstance(n.ctx, ast.Load)}
    return {a.arg for a in below(function.args, ast.arg)} - used


def _names(module: Module, call: ast.Call) -> set[str]:
    """The names that are bound in the function that calls."""
    scope = module.scope(call)
    return {
        n.id
        for n in module.all(ast.Name)
        if isinstance(n.ctx, ast.Store) and module.scope(n) is scope
    }


def _has(module: Module, call: ast.Call, name: str, role: str) -> bool:
    """An object of this role, made by a call in the function that resumes."""
    return role_of_key(name) == role and any(
        isinstance(up := module.parent(b), ast.Assign) and isinstance(up.value, ast.Call)
        for b in module.bindings(name, module.scope(call))
    )


def puts_back(loaded: Loaded) -> bool:
    """A function that only takes the weights out of a file says nothing of what is done with them; one that asks how good they are puts nothing back."""
    if loaded.keys and all(_MEASURED.search(k) and role_of_key(k) is None for k in loaded.keys):
        return False
    home = loaded.module
    function = home.function(loaded.call)
    return function is None or any(
        last_name(call).startswith("load_") for call in below(function, ast.Call)
    )
