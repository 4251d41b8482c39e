"""What a program saves with torch.save, what it loads with torch.load, and which training state it has at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fallline.syntax import Module

__all__ = [
    "Loaded",
    "Saved",
    "Used",
    "called_functions",
    "loads",
    "role_of_key",
    "saves",
    "saves_of",
    "uses",
]

_ROLE_OF_KEY = (
    ("rng", re.compile(r"rng|random|seed|generator_state", re.IGNORECASE)),
    ("scheduler", re.compile(r"sched|lr_state", re.IGNORECASE)),
    ("scaler", re.compile(r"scaler|(^|_)amp($|_)", re.IGNORECASE)),
    ("optimizer", re.compile(r"optim|(^|_)opt($|_|[a-z]?$)", re.IGNORECASE)),
    ("counter", re.compile(r"epoch|step|(^|_)iter|itr", re.IGNORECASE)),
)
_OPTIMIZER_NAME = re.compile(r"optim|(^|_)opt($|_)", re.IGNORECASE)
_SCHEDULER_NAME = re.compile(r"sched", re.IGNORECASE)
# A learning rate that depends on the number of the update alone, given each time: nothing to save.
_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


def role_of_key(key: str) -> str | None:
    """What an entry of a checkpoint is, by its key: `optimizer`, `scheduler`, `scaler`, `counter`, `rng` or None."""
    return next((role for role, pattern in _ROLE_OF_KEY if pattern.search(key)), None)


@dataclass
class Saved:
    """One dict that goes into torch.save. `open` when it may hold more than can be seen."""

    module: Module
    call: ast.Call
    entries: dict[str, ast.expr]
    path: ast.expr | None
    open: bool = False

    def roles(self) -> set[str]:
        return {
            role
            for key, value in self.entries.items()
            if (role := self.role(key, value)) is not None
        }

    def role(self, key: str, value: ast.expr) -> str | None:
        owner = _state_of(value)
        return (role_of_key(owner) if owner else None) or role_of_key(key)

    def holds(self, name: str, role: str) -> bool:
        """Whether the state of this object is in it; an entry of the same role that may be anybody's counts."""
        same = [v for k, v in self.entries.items() if self.role(k, v) == role]
        anybody = {None, name, *self._parameters()}
        return any(_state_of(v) in anybody or name in ast.unparse(v) for v in same)

    def _parameters(self) -> set[str]:
        """What the saving function is given: its names are not the caller's."""
        function = self.module.function(self.call)
        return (
            {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
            if function is not None
            else set()
        )


def _state_of(value: ast.expr) -> str | None:
    """`self.optimizer.state_dict()` → `optimizer`."""
    if isinstance(value, ast.IfExp):
        value = value.body if isinstance(value.body, ast.Call) else value.orelse
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "state_dict"
    ):
        return _last_name(value.func.value)
    return None


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def saves_of(module: Module) -> Iterator[tuple[ast.Call, ast.expr, ast.expr | None]]:
    """(call, what, where) of every torch.save, also through a helper that saves what it is given."""
    for call in module.calls("torch.save"):
        what = Module.argument(call, 0, "obj")
        if what is not None:
            yield call, what, Module.argument(call, 1, "f")
    for call, function, home in called_functions(module):
        position = _saved_parameter(home, function)
        if position is not None:
            index = position - (
                1 if isinstance(call.func, ast.Attribute) and _is_method(function) else 0
            )
            name = (function.args.posonlyargs + function.args.args)[position].arg
            what = Module.argument(call, index, name)
            if what is not None:
                yield call, what, None


def _is_method(function: ast.FunctionDef) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"


def _saved_parameter(home: Module, function: ast.FunctionDef) -> int | None:
    """Which parameter a helper hands to torch.save as it is."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    for call in home.calls("torch.save"):
        if (
            home.function(call) is function
            and call.args
            and isinstance(call.args[0], ast.Name)
            and call.args[0].id in names
        ):
            return names.index(call.args[0].id)
    return None


def called_functions(module: Module) -> Iterator[tuple[ast.Call, ast.FunctionDef, Module]]:
    """Calls of functions and methods that can be seen, in this file or another one of the project, that save or load."""
    own = {n.name: n for n in module.all(ast.FunctionDef)}
    for call in module.all(ast.Call):
        name = _last_name(call.func)
        if name is None or not re.search(
            r"save|load|resume|checkpoint|ckpt|restore|snapshot", name, re.IGNORECASE
        ):
            continue
        dotted = module.resolve(call.func)
        if dotted is not None:
            found = (
                module.project.find(dotted, module)
                if module.project is not None and not dotted.startswith("torch.")
                else None
            )
            if found is not None and isinstance(found[1], ast.FunctionDef):
                yield call, found[1], found[0]
        elif name in own and (
            isinstance(call.func, ast.Name) or ast.unparse(call.func).startswith("self.")
        ):
            yield call, own[name], module


def saves(module: Module) -> list[Saved]:
    """Every dict of this file that goes into torch.save."""
    found = []
    for call, what, where in saves_of(module):
        made = _as_dict(module, what)
        if made is not None:
            found.append(Saved(module, call, made[0], where, made[1]))
    return found


def _as_dict(module: Module, node: ast.expr) -> tuple[dict[str, ast.expr], bool] | None:
    made = module.value(node)
    entries: dict[str, ast.expr] = {}
    hidden = False
    if isinstance(made, ast.Dict):
        for key, value in zip(made.keys, made.values, strict=True):
            text = module.constant(key) if key is not None else None
            if isinstance(text, str):
                entries[text] = value
            else:
                hidden = True
    elif (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Name)
        and made.func.id == "dict"
        and not made.args
    ):
        for keyword in made.keywords:
            if keyword.arg is None:
                hidden = True
            else:
                entries[keyword.arg] = keyword.value
    else:
        return None
    if isinstance(node, ast.Name):
        hidden |= _add_later_entries(module, node, entries)
    return entries, hidden


def _add_later_entries(module: Module, name: ast.Name, entries: dict[str, ast.expr]) -> bool:
    """`state["scaler"] = ...` after the dict was made. True when it may get entries that cannot be seen."""
    hidden = False
    scope = module.scope(name)
    for use in module.all(ast.Name):
        if use.id != name.id or module.scope(use) is not scope or use is name:
            continue
        up = module.parent(use)
        if isinstance(up, ast.Subscript) and isinstance(up.ctx, ast.Store):
            key, statement = module.constant(up.slice), module.parent(up)
            if isinstance(key, str) and isinstance(statement, ast.Assign):
                entries[key] = statement.value
            else:
                hidden = True
        elif isinstance(up, ast.Attribute) and up.attr in {"update", "setdefault"}:
            hidden = True
        elif (
            isinstance(up, ast.Call) and use in up.args and module.resolve(up.func) != "torch.save"
        ):
            hidden |= _last_name(up.func) not in {"print", "len"} and not re.search(
                "save", _last_name(up.func) or ""
            )
    return hidden


@dataclass(frozen=True)
class Used:
    """An object with training state that the program advances."""

    role: str
    name: str
    node: ast.AST
    is_attribute: bool


def uses(module: Module) -> list[Used]:
    """The optimizers, schedulers and scalers that this file steps."""
    found: dict[tuple[str, str], Used] = {}
    replayed: set[str | None] = set()
    for call in module.method_calls("step"):
        assert isinstance(call.func, ast.Attribute)
        scaled = call.args[0] if call.args else None
        receiver = call.func.value
        for node in (receiver, scaled):
            name = _last_name(node) if node is not None else None
            role = _role_of_object(module, node) if node is not None and name is not None else None
            if role is None or name is None or node is None:
                continue
            if role == "scheduler" and not _needs_state(module, node, bool(call.args)):
                continue
            if role == "scheduler" and _replays(module, call):
                replayed.add(name)
            found.setdefault((role, name), Used(role, name, call, isinstance(node, ast.Attribute)))
    return [u for u in found.values() if u.name not in replayed]


def _replays(module: Module, call: ast.Call) -> bool:
    """`for _ in range(start): scheduler.step()`: after a load it is brought to where it was."""
    loop = module.parent(module.statement(call))
    return (
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call)
        and isinstance(loop.iter.func, ast.Name)
        and loop.iter.func.id == "range"
        and all(isinstance(s, ast.Expr) and _advances(s.value) for s in loop.body)
    )


def _advances(value: ast.expr) -> bool:
    """`scheduler.step()`, `next(momentum)`: not the step of an optimizer."""
    if not isinstance(value, ast.Call):
        return False
    of = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    return "opt" not in (_last_name(of) or "").lower()


def _role_of_object(module: Module, node: ast.expr) -> str | None:
    constructor = _constructor(module, node)
    if constructor is not None:
        call, name = constructor
        if name.startswith("torch.optim.lr_scheduler.") or re.fullmatch(
            r"transformers\.(\w+\.)*get_\w*schedule\w*|transformers\.(\w+\.)*get_scheduler", name
        ):
            return "scheduler"
        if name.endswith(".GradScaler"):
            return (
                None
                if module.constant(Module.argument(call, None, "enabled")) is False
                else "scaler"
            )
        if name.startswith("torch.optim.") or _OPTIMIZER_NAME.search(name.rpartition(".")[2]):
            return "optimizer"
        return None
    name = _last_name(node) or ""
    if _SCHEDULER_NAME.search(name):
        return "scheduler"
    return (
        "optimizer"
        if re.fullmatch(r"optim(izer)?(_\w+)?|\w+_optim(izer)?|optimizer[A-Z]\w*", name)
        else None
    )


def _constructor(module: Module, node: ast.expr) -> tuple[ast.Call, str] | None:
    made: ast.expr = module.value(node)
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        cls = module.class_(node)
        values = module.attribute_values(cls, node.attr) if cls is not None else []
        made = values[0] if values else node
    if isinstance(made, ast.Call):
        name = module.resolve(made.func)
        return (made, name) if name is not None else None
    return None


def _needs_state(module: Module, scheduler: ast.expr, told: bool) -> bool:
    """A schedule that is told where it is, by step(epoch) or by last_epoch, has no state; ReduceLROnPlateau has."""
    constructor = _constructor(module, scheduler)
    if constructor is None:
        return not told
    call, name = constructor
    return name == _PLATEAU or not (told or Module.argument(call, None, "last_epoch") is not None)


@dataclass
class Loaded:
    """One torch.load whose result is taken apart by key."""

    module: Module
    call: ast.Call
    keys: dict[str, ast.AST] = field(default_factory=dict)
    escapes: bool = False  # it goes where we cannot follow

    def restored(self) -> dict[str, ast.AST]:
        """The keys whose values are used for more than a message."""
        return {k: n for k, n in self.keys.items() if not _only_told(self.module, n)}


def loads(module: Module) -> list[Loaded]:
    """Every `name = torch.load(...)` of this file with the keys that are read from it."""
    found = []
    for call in module.calls("torch.load"):
        up = module.parent(call)
        if isinstance(up, ast.Subscript) and isinstance(module.constant(up.slice), str):
            found.append(Loaded(module, call, {module.constant(up.slice): up}))
            continue
        if (
            not isinstance(up, ast.Assign)
            or len(up.targets) != 1
            or not isinstance(up.targets[0], ast.Name)
        ):
            continue
        loaded = Loaded(module, call)
        target = up.targets[0]
        scope = module.scope(target)
        for use in module.all(ast.Name):
            if use.id == target.id and isinstance(use.ctx, ast.Load) and module.scope(use) is scope:
                _read_use(module, use, loaded)
        found.append(loaded)
    return found


def _read_use(module: Module, use: ast.Name, loaded: Loaded) -> None:
    up = module.parent(use)
    key: object = None
    if isinstance(up, ast.Subscript) and up.value is use and isinstance(up.ctx, ast.Load):
        key = module.constant(up.slice)
    elif isinstance(up, ast.Attribute) and up.attr in {"get", "pop"}:
        call = module.parent(up)
        key = module.constant(call.args[0]) if isinstance(call, ast.Call) and call.args else None
    elif isinstance(up, ast.Compare) or (isinstance(up, ast.Attribute) and up.attr == "keys"):
        return
    elif isinstance(up, ast.Delete | ast.FormattedValue):
        return
    if isinstance(key, str):
        assert up is not None
        known = loaded.keys.get(key)
        if known is None or _only_told(module, known):
            loaded.keys[key] = up
    else:
        loaded.escapes = True


def _only_told(module: Module, node: ast.AST) -> bool:
    """Read only to print or log it."""
    for up in module.parents(node):
        if isinstance(up, ast.JoinedStr):
            return True
        if isinstance(up, ast.Call):
            name = _last_name(up.func) or ""
            if name in {"print", "info", "debug", "warning", "format", "write", "log"}:
                return True
        if isinstance(up, ast.stmt):
            return False
    return False
