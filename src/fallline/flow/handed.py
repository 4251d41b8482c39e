"""Checkpoints that somebody else writes: a helper, `save_checkpoint(model, optimizer, epoch, path)`, or an object
that is built with what it has to save, `Checkpointer(model, folder, optimizer=optimizer)`.

What such a call is handed is what the file holds, wherever the helper is; what its own body takes elsewhere counts too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import last_name
from fallline.flow.checkpoints import Saved, called_functions, role_of_key, state_of
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, is_name, written

__all__ = ["Keeper", "handed_saves", "keepers", "left_unrestored"]

_LOADS = re.compile(r"(^|_)(load|resume|restore)", re.IGNORECASE)
_OPTIMIZER = re.compile(
    r"((?!load_|use_|save_|with_|reset_|no_)\w+_)?optim(i[sz]er)?s?|opt", re.IGNORECASE
)

_SAVES = re.compile(r"save_?\w*(check_?point|ckpt|model|state|snapshot|training)", re.IGNORECASE)
_KEEPS = re.compile(r"(^|[a-z])Checkpoint(er|Manager|Handler|Saver)$")
# Objects that know the rest of the run themselves.
_KNOWS_ALL = re.compile(
    r"^(self|cls|trainer|accelerator|engine|fabric|runner|learner|states?|checkpoint|ckpt)$"
)


def handed_saves(module: Module) -> list[Saved]:
    """Calls of a helper that saves, by its name, and is handed an optimizer."""
    bodies = {id(call): function for call, function, _ in called_functions(module)}
    found = []
    for call in module.all(ast.Call):
        if not _SAVES.match(last_name(call)) or (module.resolve(call.func) or "").startswith(
            "torch."
        ):
            continue
        entries = _entries(call)
        hidden = Module.has_star(call) or any(_KNOWS_ALL.match(k) for k in entries)
        function = bodies.get(id(call))
        if function is not None:
            entries = {**_kept_by(function), **entries}
        saved = Saved(module, call, entries, None, hidden)
        if "optimizer" in {role_of_key(k) for k in _entries(call)}:
            found.append(saved)
    return found


def left_unrestored(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Functions that load into what they are given, and only look at the optimizer: where each loads, and its name."""
    for function in module.all(ast.FunctionDef):
        if not _LOADS.search(function.name):
            continue
        flags = _flags(function)
        names = [a.arg for a in below(function.args, ast.arg) if _OPTIMIZER.fullmatch(a.arg)]
        names = [name for name in names if name not in flags]
        calls = below(function, ast.Call)
        restores = [c for c in calls if last_name(c) == "load_state_dict"]
        reads = [c for c in calls if module.resolve(c.func) == "torch.load"]
        for name in names:
            if restores and not _does_something_with(module, function, name):
                yield (reads or restores)[0], name


def _flags(function: ast.FunctionDef) -> set[str]:
    """`resume_optimizer=True`, `optimizer: bool`: whether, and not which."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [
        *zip(reversed(plain), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    given = {
        a.arg for a, d in defaults if isinstance(d, ast.Constant) and isinstance(d.value, bool)
    }
    return given | {a.arg for a in below(arguments, ast.arg) if is_name(a.annotation, "bool")}


def _does_something_with(module: Module, function: ast.FunctionDef, name: str) -> bool:
    """It is used for more than a look at it: the question whether there is one, its learning rate, a `return`."""
    for use in (n for statement in function.body for n in below(statement, ast.Name)):
        if use.id == name:
            match module.parent(use):
                case ast.Compare() | ast.If() | ast.UnaryOp():
                    continue
                case ast.BoolOp() if isinstance(module.statement(use), ast.If):
                    continue
                case ast.Return() | ast.Tuple() if isinstance(module.statement(use), ast.Return):
                    continue  # handed back as it came
                case ast.Attribute(attr="param_groups" | "param_group"):
                    continue  # a learning rate is set; momentum is not in the groups
            return True
    return any(last_name(c) == "locals" for c in below(function, ast.Call))


def _entries(call: ast.Call) -> dict[str, ast.expr]:
    """The arguments by what they are: a keyword, or the name of the object."""
    named = {k.arg: k.value for k in call.keywords if k.arg is not None}
    for value in call.args:
        match value:
            case ast.Dict(keys, values):
                pairs = zip(keys, values, strict=True)
                named |= {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
            case ast.Name() | ast.Attribute() | ast.Call():
                named[state_of(value) or last_name(value)] = value
    return {k: v for k, v in named.items() if not _nothing(v)}


def _nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _kept_by(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The states that the helper takes itself."""
    calls = (n for n in below(function, ast.Call))
    return {owner: call for call in calls if (owner := state_of(call)) is not None}


@dataclass(frozen=True)
class Keeper:
    """An object that saves what it was built with. `place`: where it puts those together, if that can be seen."""

    call: ast.Call
    roles: set[str | None]
    place: tuple[Module, ast.AST]


def keepers(module: Module) -> Iterator[Keeper]:
    """The checkpointers of this file that are handed a model and hold nothing that cannot be seen."""
    for call in module.calls_named(_KEEPS):
        if Module.has_star(call):
            continue
        handed = _entries(call)
        roles = {role_of_key(k) for k in handed}
        for value in handed.values():
            if isinstance(value, ast.Dict):
                roles |= {
                    role_of_key(str(k.value)) for k in value.keys if isinstance(k, ast.Constant)
                }
        unknown = [
            v
            for k, v in handed.items()
            if _KNOWS_ALL.match(k) and not _without_optimizer(module, v)
        ]
        if not unknown and any("model" in k for k in handed):
            yield Keeper(call, roles, _put_together(module, call) or (module, call))


def _without_optimizer(module: Module, value: ast.expr) -> bool:
    """A dict in view, or this object itself where its `state_dict` has no optimizer in it."""
    match value:
        case ast.Dict():
            return True
        case ast.Call(ast.Attribute(attr="proxy"), [inner]):
            value = inner
    cls = module.class_(value)
    if not isinstance(value, ast.Name) or value.id != "self" or cls is None:
        return False
    method = find_method(module, cls, "state_dict")
    return method is not None and not re.search(r"optim|trainer\.", written(method[1]))


def _put_together(module: Module, call: ast.Call) -> tuple[Module, ast.AST] | None:
    """The entry for the optimizer in the dict that the object's class makes of what it is given."""
    name = module.resolve(call.func)
    home = module.project.find(name, module) if name and module.project is not None else None
    if home is None or not isinstance(home[1], ast.ClassDef):
        return None
    method = find_method(home[0], home[1], "__init__")
    for node in ast.walk(method[1]) if method is not None else ():
        if method is not None and isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and role_of_key(str(key.value)) == "optimizer":
                    return method[0], value
    return None
