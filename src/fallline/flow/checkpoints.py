"""What a program saves with torch.save, what it loads with torch.load, and which training state it has at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fallline.flow.calls import last_name, of_self, returned, same
from fallline.flow.collected import iterated
from fallline.flow.unused import never_given
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written
from fallline.syntax.once import once

__all__ = [
    "Loaded",
    "Saved",
    "Used",
    "called_functions",
    "loads",
    "only_stateless",
    "role_of_key",
    "saves",
    "saves_of",
    "state_of",
    "uses",
]

_ROLE_OF_KEY = (
    ("rng", re.compile(r"rng|random|seed|generator_state", re.IGNORECASE)),
    ("scheduler", re.compile(r"sched|lr_state", re.IGNORECASE)),
    ("scaler", re.compile(r"(?<![a-z])scaler|(grad|loss|amp)scaler|(^|_)amp($|_)", re.IGNORECASE)),
    ("optimizer", re.compile(r"optim|(^|_)opt($|_|[a-z]?$)", re.IGNORECASE)),
    ("counter", re.compile(r"^(?!best_).*(epoch|step|(^|_)iter|itr)", re.IGNORECASE)),
)
_OPTIMIZER_NAME = re.compile(r"optim|(^|_)opt($|_)", re.IGNORECASE)
_SCHEDULER_NAME = re.compile(r"sched", re.IGNORECASE)
_IS_OPTIMIZER = re.compile(r"optim(izer)?(_\w+)?|\w+_optim(izer)?|optimizer[A-Z]\w*")
_MAKES_SCHEDULER = re.compile(
    r"torch\.optim\.lr_scheduler\.|transformers\.(\w+\.)*(get_\w*schedule\w*|get_scheduler)$"
)
# `get_lr_scheduler(optimizer, config)` of the project; not a schedule of noise
_OWN_SCHEDULER = re.compile(r"(lr_?sched\w*|(get|make|build|create)_scheduler)$", re.IGNORECASE)
_MEASURED = re.compile(r"(?i)loss|metric|acc|score|valid|reward")
_SAVES_OR_LOADS = re.compile(r"save|load|resume|checkpoint|ckpt|restore|snapshot", re.IGNORECASE)
# `trainer.add_event_handler(event, checkpointer, {"model": model.state_dict()})` saves too
_SAVES = re.compile(r"(^|_)save(_|$)|^add_event_handler$", re.IGNORECASE)
_LOGS = frozenset("print info debug warning format write log".split())
_OPTIMIZER = re.compile(r"torch\.optim\.(?!lr_scheduler|swa_utils)(\w+\.)?[A-Z]\w*$")
_SGD = frozenset({"torch.optim.SGD", "torch.optim.sgd.SGD"})
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
    given: frozenset[str] = frozenset()  # names in a function that puts the dict together

    def roles(self) -> set[str]:
        return {
            role
            for key, value in self.entries.items()
            if (role := self.role(key, value)) is not None
        }

    def role(self, key: str, value: ast.expr) -> str | None:
        owner = state_of(value)
        return (role_of_key(owner) if owner else None) or role_of_key(key)

    def holds(self, name: str, role: str) -> bool:
        """Whether the state of this object is in it; an entry of the same role that may be anybody's counts."""
        same = [v for k, v in self.entries.items() if self.role(k, v) == role]
        given = {*self._parameters(), *self.given}
        # `g_optim` beside `d_optim` in one function: each name is its own object's
        anybody = {None, name, *(given if name not in given else ())}
        return any(state_of(v) in anybody or name in written(v) for v in same)

    def _parameters(self) -> set[str]:
        """What the saving function is given: its names are not the caller's."""
        function = self.module.function(self.call)
        return {a.arg for a in below(function.args, ast.arg)} if function is not None else set()


def state_of(value: ast.expr) -> str | None:
    """`self.optimizer.state_dict()` → `optimizer`."""
    match value:
        case ast.IfExp(body=ast.Call() as chosen) | ast.IfExp(orelse=chosen):
            return state_of(chosen)
        case ast.Call(ast.Attribute(ast.Name(owner) | ast.Attribute(attr=owner), "state_dict")):
            return owner
    return None


def saves_of(module: Module) -> Iterator[tuple[ast.Call, ast.expr, ast.expr | None]]:
    """(call, what, where) of every torch.save, also through a helper that saves what it is given."""
    for call in module.calls("torch.save"):
        what = Module.argument(call, 0, "obj")
        if what is not None:
            yield call, what, Module.argument(call, 1, "f")
    seen: set[int] = set()
    for call, function, home in called_functions(module):
        names = [a.arg for a in function.args.posonlyargs + function.args.args]
        place = _saved_parameter(home, function, names)
        if place is not None:
            method = isinstance(call.func, ast.Attribute) and names[0] == "self"
            what = Module.argument(call, place - method, names[place])
            if what is not None:
                seen.add(id(call))
                yield call, what, None
    for call in module.calls_named(_SAVES):
        states = _saved_by_name(module, call) if id(call) not in seen else None
        if states is not None:
            yield call, states, None


def _saved_by_name(module: Module, call: ast.Call) -> ast.expr | None:
    """`save_on_master({"model": model.state_dict(), ...}, path)`: a dict of states goes to a function called so."""
    if (module.resolve(call.func) or "").startswith("torch."):
        return None
    return next((a for a in call.args if _holds_states(module.value(a))), None)


def _holds_states(made: ast.expr) -> bool:
    """A dict of states, or an object that is built of them by keyword: `Checkpoint(model=model.state_dict(), ...)`."""
    match made:
        case ast.Dict(values=values):
            return any(state_of(value) is not None for value in values)
        case ast.Call(func, [], keywords) if last_name(func)[:1].isupper():
            return any(state_of(k.value) is not None for k in keywords)
    return False


def _saved_parameter(home: Module, function: ast.FunctionDef, names: list[str]) -> int | None:
    """Which parameter a helper hands to torch.save as it is."""
    for call in home.calls("torch.save"):
        match call.args:
            case [ast.Name(given), *_] if given in names and home.function(call) is function:
                return names.index(given)
    return None


@once
def called_functions(module: Module) -> list[tuple[ast.Call, ast.FunctionDef, Module]]:
    """Calls of functions and methods that can be seen, in this file or another one of the project, that save or load."""
    own = {n.name: n for n in module.all(ast.FunctionDef)}
    found: list[tuple[ast.Call, ast.FunctionDef, Module]] = []
    for call in module.calls_named(_SAVES_OR_LOADS):
        name = last_name(call)
        dotted = module.resolve(call.func)
        if dotted is None:
            if name in own and (isinstance(call.func, ast.Name) or _of_self(call.func)):
                found.append((call, own[name], module))
        elif module.project is not None and not dotted.startswith("torch."):
            match module.project.find(dotted, module):
                case home, ast.FunctionDef() as function:
                    found.append((call, function, home))
    return found


def _of_self(func: ast.expr) -> bool:
    """`self.save`, `self.trainer.save`."""
    while isinstance(func, ast.Attribute):
        func = func.value
    return is_name(func, "self")


def saves(module: Module) -> list[Saved]:
    """Every dict of this file that goes into torch.save."""
    found = []
    for call, what, where in saves_of(module):
        behind = _returned(module, what)
        made = _as_dict(behind[0], behind[2]) if behind else _as_dict(module, what)
        given = {a.arg for a in below(behind[1].args, ast.arg)} if behind else set()
        if made is not None:
            found.append(Saved(module, call, made[0], where, made[1], frozenset(given)))
    return found


def _as_dict(module: Module, node: ast.expr) -> tuple[dict[str, ast.expr], bool] | None:
    """The entries of a dict that can be seen, and whether it may hold more."""
    made: ast.expr | ast.arg = module.value(node)
    if made is node and isinstance(node, ast.Name):
        made = (
            values_of(module).definition(node) or node
        )  # the same name may hold the loaded dict, earlier
    match made:
        case ast.Dict(keys, values):
            named = [module.constant(k) if k is not None else None for k in keys]
        case ast.Call(ast.Name("dict"), [], keywords):
            named, values = [k.arg for k in keywords], [k.value for k in keywords]
        case ast.Call(_, [], keywords) if _holds_states(made):
            named, values = [k.arg for k in keywords], [k.value for k in keywords]
        case _:
            return None
    pairs = list(zip(named, values, strict=True))
    entries = {key: value for key, value in pairs if isinstance(key, str)}
    hidden = any(not isinstance(key, str) for key, _ in pairs)
    if isinstance(node, ast.Name):
        hidden |= _add_later_entries(module, node, made, entries)
    return entries, hidden


def _returned(module: Module, node: ast.expr) -> tuple[Module, ast.FunctionDef, ast.expr] | None:
    """`torch.save(serialize(model, optimizer), path)`: the function of the project that puts the dict together, and what it returns."""
    call = module.value(node)
    if not isinstance(call, ast.Call):
        return None
    home, function = module, module.functions.get(last_name(call))
    dotted = module.resolve(call.func)
    if dotted is not None and module.project is not None:
        home, function = module.project.find(dotted, module) or (module, None)  # type: ignore[assignment]
    elif not isinstance(call.func, ast.Name):
        return None
    given = returned(home, function) if isinstance(function, ast.FunctionDef) else []
    match function, given:
        case ast.FunctionDef(), [one]:
            return home, function, one
    return None


def _add_later_entries(
    module: Module, name: ast.Name, made: ast.AST, entries: dict[str, ast.expr]
) -> bool:
    """`state["scaler"] = ...` after the dict was made. True when it may get entries that cannot be seen."""
    hidden = False
    shared = len(module.bindings(name.id, module.scope(name))) > 1
    after = module.statement(made) if shared else None
    for use in values_of(module).uses(name.id, module.scope(name), after):
        up = module.parent(use)
        match up:
            case ast.Subscript(ctx=ast.Store()):
                key, statement = module.constant(up.slice), module.parent(up)
                if isinstance(key, str) and isinstance(statement, ast.Assign):
                    entries[key] = statement.value
                else:
                    hidden = True
            case ast.Attribute(attr="update" | "setdefault"):
                hidden = True
            case ast.Call(func, given) if use in given and use is not name:
                seen = module.resolve(func) == "torch.save" or last_name(func) in {"print", "len"}
                hidden |= not seen and "save" not in last_name(func)
    return hidden


@dataclass(frozen=True)
class Used:
    """An object with training state that the program advances."""

    role: str
    name: str
    node: ast.AST
    is_attribute: bool
    sure: bool = True  # else it may be None in every run


def uses(module: Module) -> list[Used]:
    """The optimizers, schedulers and scalers that this file steps."""
    found: dict[tuple[str, str], Used] = {}
    replayed: set[str | None] = set()
    for call in module.method_calls("step"):
        assert isinstance(call.func, ast.Attribute)
        for node in (call.func.value, *call.args[:1]):  # scaler.step(optimizer)
            name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            role = _role_of_object(module, node) if name else None
            if role is None or never_given(module, node):
                continue
            if role == "scheduler" and not _needs_state(module, node, _told(call)):
                continue
            if role == "scheduler" and _replays(module, call):
                replayed.add(name)
            found.setdefault((role, name), Used(role, name, call, isinstance(node, ast.Attribute)))
    for call in module.calls("apex.amp.scale_loss"):  # apex keeps the loss scale in amp itself
        found.setdefault(("scaler", "amp"), Used("scaler", "amp", call, False))
    return [u for u in found.values() if u.name not in replayed]


def only_stateless(module: Module) -> bool:
    """Every optimizer that this file makes is SGD without momentum, which has no state to save."""
    made = [c for c in module.all(ast.Call) if _OPTIMIZER.match(module.resolve(c.func) or "")]
    return bool(made) and all(_is_plain_sgd(module, call) for call in made)


def _is_plain_sgd(module: Module, call: ast.Call) -> bool:
    momentum = module.argument(call, 2, "momentum")
    unknown = any(k.arg is None for k in call.keywords)
    plain = momentum is None or module.number(momentum) == 0
    return module.resolve(call.func) in _SGD and plain and not unknown


def _replays(module: Module, call: ast.Call) -> bool:
    """`for _ in range(start): scheduler.step()`: after a load it is brought to where it was."""
    match module.parent(module.statement(call)):
        case ast.For(iter=ast.Call(ast.Name("range")), body=body):
            return all(_advances(statement) for statement in body)
    return False


def _advances(statement: ast.stmt) -> bool:
    """`scheduler.step()`, `next(momentum)`: not the step of an optimizer."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(of)) | ast.Call(of)):
            return "opt" not in last_name(of).lower()
    return False


def _role_of_object(module: Module, node: ast.expr) -> str | None:
    constructor = _constructor(module, node)
    if constructor is None:
        name = last_name(node)
        if _SCHEDULER_NAME.search(name):
            return "scheduler"
        return "optimizer" if _IS_OPTIMIZER.fullmatch(name) else None
    call, name = constructor
    if _MAKES_SCHEDULER.match(name) or _OWN_SCHEDULER.search(name):
        return "scheduler"
    if name.endswith(".GradScaler"):
        off = module.constant(Module.argument(call, None, "enabled")) is False
        return None if off else "scaler"
    if name.startswith("torch.optim.") or _OPTIMIZER_NAME.search(name.rpartition(".")[2]):
        return "optimizer"
    return None


def _constructor(module: Module, node: ast.expr) -> tuple[ast.Call, str] | None:
    made: ast.expr = module.value(node)
    if of_self(node) is not None:
        cls = module.class_(node)
        values = module.attribute_values(cls, last_name(node)) if cls is not None else []
        made = values[0] if values else node
    elif isinstance(node, ast.Name) and made is node:
        made = _unless_none(module, node)
    name = module.resolve(made.func) if isinstance(made, ast.Call) else None
    return (made, name) if isinstance(made, ast.Call) and name is not None else None


def _unless_none(module: Module, node: ast.Name) -> ast.expr:
    """What a name stands for where it is not None: `if args.warm_up: scheduler = LambdaLR(...)`, `else: scheduler = None`."""
    up = (module.parent(b) for b in module.bindings(node.id, module.scope(node)))
    values = [a.value for a in up if isinstance(a, ast.Assign)]
    match [v for v in values if not (isinstance(v, ast.Constant) and v.value is None)]:
        case [made]:
            return made
    return node


def _told(step: ast.Call) -> bool:
    """`scheduler.step(epoch)`; one that is given what was measured counts how long it has not improved."""
    return bool(step.args) and not _MEASURED.search(written(step.args[0]))


def _needs_state(module: Module, scheduler: ast.expr, told: bool) -> bool:
    """A schedule that is told where it is, by step(epoch) or by last_epoch, has no state; ReduceLROnPlateau has."""
    told = told or _is_placed(module, scheduler)
    constructor = _constructor(module, scheduler)
    if constructor is None:
        return not told and not _is_stateless(module, scheduler)
    call, name = constructor
    return name == _PLATEAU or not (told or _placed_by(call))


def _is_stateless(module: Module, scheduler: ast.expr) -> bool:
    """Wherever something of its name is made, in this file, it is told where it is."""
    made = [a.value for a in module.all(ast.Assign) if any(same(t, scheduler) for t in a.targets)]
    calls = [v for v in made if isinstance(v, ast.Call)]
    return bool(calls) and all(_placed_by(v) for v in calls)


def _placed_by(call: ast.Call) -> bool:
    """`StepLR(optimizer, 10, 0.1, last_epoch - 1)`; `ExponentialLR` multiplies the rate, which the optimizer keeps."""
    given = {n.id for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    return last_name(call) == "ExponentialLR" or "last_epoch" in given | {
        k.arg for k in call.keywords
    }


def _is_placed(module: Module, scheduler: ast.expr) -> bool:
    """`scheduler.last_epoch = start_epoch - 1`."""
    placed = (t for a in module.all(ast.Assign) for t in a.targets)
    return any(
        isinstance(t, ast.Attribute) and t.attr == "last_epoch" and same(t.value, scheduler)
        for t in placed
    )


@dataclass
class Loaded:
    """One torch.load whose result is taken apart by key."""

    module: Module
    call: ast.Call
    keys: dict[str, ast.AST] = field(default_factory=dict)
    escapes: bool = False  # it goes where we cannot follow

    def restored(self) -> dict[str, ast.AST]:
        """The keys whose values are used for more than a message."""
        return {k: n for k, n in self.keys.items() if not _only_logged(self.module, n)}


def loads(module: Module) -> list[Loaded]:
    """Every `name = torch.load(...)` of this file with the keys that are read from it."""
    found = []
    for call in module.calls("torch.load"):
        match module.parent(call):
            case ast.Subscript(slice=index) as up if isinstance(module.constant(index), str):
                found.append(Loaded(module, call, {module.constant(index): up}))
            case ast.Assign([ast.Name() as target]):
                loaded = Loaded(module, call)
                for use in _until_bound_again(module, target):
                    # the same name may be loaded in another branch, and be the argument before
                    if values_of(module).definition(use) in (None, call):
                        _read_use(module, use, loaded)
                found.append(loaded)
    return found


def _until_bound_again(module: Module, target: ast.Name) -> list[ast.Name]:
    """The uses of a name, up to where it is given a new value: `checkpoint = {...}` before the save."""
    scope = module.scope(target)
    uses = values_of(module).uses(target.id, scope)
    again = [
        b.lineno
        for b in module.bindings(target.id, scope)
        if isinstance(b, ast.Name)
        and isinstance(module.parent(b), ast.Assign)
        and _makes_dict(module, b)
    ]
    end = min((line for line in again if line > target.lineno), default=None)
    return [u for u in uses if end is None or target.lineno < u.lineno < end]


def _makes_dict(module: Module, binding: ast.Name) -> bool:
    match module.parent(binding):
        case ast.Assign(value=ast.Dict() | ast.Call(ast.Name("dict"))):
            return True
    return False


def _read_use(module: Module, use: ast.Name, loaded: Loaded) -> None:
    up = module.parent(use)
    key: object = None
    match up:
        case ast.Subscript(value, index, ast.Load()) if value is use:
            key = module.constant(index)
            for each in _keys_of_loop(module, index):
                loaded.keys.setdefault(each, up)
                key = each
        case ast.Attribute(attr="get" | "pop"):
            call = module.parent(up)
            key = (
                module.constant(call.args[0]) if isinstance(call, ast.Call) and call.args else None
            )
        case ast.Compare() | ast.Attribute(attr="keys") | ast.Delete() | ast.FormattedValue():
            return
        case ast.Call(ast.Attribute(attr="load_state_dict"), [whole, *_]) if whole is use:
            return  # a file of the other kind, with weights and nothing else
    if up is None or not isinstance(key, str):
        loaded.escapes = True
    elif key not in loaded.keys or _only_logged(module, loaded.keys[key]):
        loaded.keys[key] = up


def _keys_of_loop(module: Module, index: ast.expr) -> list[str]:
    """`k` of `for k in ("model", "optimizer"):`, one by one."""
    bound = module.bindings(index.id, module.scope(index)) if isinstance(index, ast.Name) else []
    over = iterated(module, bound[0]) if len(bound) == 1 else None
    keys = [module.constant(e) for e in over.elts] if isinstance(over, ast.Tuple | ast.List) else []
    return keys if all(isinstance(k, str) for k in keys) else []


def _only_logged(module: Module, node: ast.AST) -> bool:
    """Read only to print or log it, or to ask whether it is there."""
    below = node
    for up in module.parents(node):
        match up:
            case ast.If(test) if test is below:
                return True
            case ast.JoinedStr():
                return True
            case ast.Call() if last_name(up) in _LOGS:
                return True
            case ast.stmt():
                return False
        below = up
    return False
