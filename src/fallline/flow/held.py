"""Whose training state a save is about: what a class is given and keeps, what one program part steps and another saves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.checkpoints import Saved, Used, role_of_key, state_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of

__all__ = [
    "concerns",
    "handed_over",
    "held",
    "left_beside",
    "loaded_alone",
    "saved_alone",
    "uncalled",
]

# What an optimizer is made of or by, and not an optimizer: `optimizer_class`, `scheduler_kwargs`.
_RECIPE = re.compile(
    r"(?i)(class|cls|type|name|fn|func|factory|builder|kwargs|args|params|config|conf|cfg|options|settings|dict|lr|freq|interval|steps?)$"
)


def held(module: Module) -> Iterator[Used]:
    """`self.scheduler = scheduler` in a class that saves states to continue from, and does not step it in this file.

    An optional one may never be given, so nothing sure can be said of it.
    """
    for cls in module.all(ast.ClassDef):
        made = next((m for m in methods_of(cls) if m.name == "__init__"), None)
        if made is None or not _saves_to_go_on(cls):
            continue
        required = _required(made)
        for statement in below(made, ast.Assign):
            match statement:
                case ast.Assign([ast.Attribute(ast.Name("self"), name) as target], ast.Name(given)):
                    role = role_of_key(name)
                    if name == given and role in {"optimizer", "scheduler", "scaler"}:
                        if not (_RECIPE.search(name) or _stepped(module, name)):
                            yield Used(role, name, target, True, given in required)


def handed_over(module: Module) -> Iterator[Used]:
    """`optimizer = make(...)` in a function that gives it to whoever trains (`Trainer(model, optimizer)`) and steps nothing itself."""
    if any(module.method_calls("step")):
        return
    seen: set[str] = set()
    for call in module.all(ast.Call):
        given = [*call.args, *(k.value for k in call.keywords)]
        if not _TRAINS.search(last_name(call)):
            continue
        for one in given:
            if not isinstance(one, ast.Name) or role_of_key(one.id) != "optimizer":
                continue
            made = [module.parent(b) for b in module.bindings(one.id, module.scope(call))]
            if one.id not in seen and any(isinstance(m, ast.Assign) for m in made):
                seen.add(one.id)
                yield Used("optimizer", one.id, call, False, False)


_TRAINS = re.compile(r"(?i)train|fit|engine|runner|learner|solver")


def _saves_to_go_on(cls: ast.ClassDef) -> bool:
    """`{"model": self.model.state_dict(), "epoch": epoch}` somewhere in the class: states, with an optimizer's or a counter."""
    for made in below(cls, ast.Dict):
        owners = [state_of(value) for value in made.values]
        keys = [k.value for k in made.keys if isinstance(k, ast.Constant)]
        roles = {role_of_key(name) for name in (*owners, *keys) if isinstance(name, str)}
        if any(owners) and roles & {"optimizer", "counter"}:
            return True
    return False


def _required(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    return {a.arg for a in arguments.args[: len(arguments.args) - len(arguments.defaults)]}


def _stepped(module: Module, name: str) -> bool:
    """Then it is one of those that the file itself advances."""
    receivers = (c.func.value for c in module.method_calls("step") if isinstance(c.func, ast.Attribute))  # fmt: skip
    return any(isinstance(r, ast.Attribute) and r.attr == name for r in receivers)


def left_beside(module: Module, used: list[Used]) -> Iterator[tuple[ast.Call, Used]]:
    """`torch.save(optimizer.state_dict(), "optimizer.pt")`, one file for each state, and no file has the scheduler's: that save, and what it is of."""
    told: set[str] = set()
    for call in module.calls("torch.save"):
        owner = _state_alone(Module.argument(call, 0, "obj"))
        if owner is None or role_of_key(owner) != "optimizer":
            continue
        saved = Saved(module, call, {}, None)
        for one in used:
            known = f"{one.name}.state_dict" in module.source.text or one.name in told
            if one.role in {"scheduler", "scaler"} and not known and concerns(module, saved, one):
                told.add(one.name)
                yield call, one


def _state_alone(what: ast.expr | None) -> str | None:
    """`optimizer` of `optimizer.state_dict()`, also of a copy of it."""
    match what:
        case ast.Call(ast.Name("deepcopy") | ast.Attribute(attr="deepcopy"), [inner]):
            return _state_alone(inner)
        case ast.expr():
            return state_of(what)
    return None


def saved_alone(module: Module) -> set[str]:
    """The objects whose state has a file of its own: `torch.save(optimizer.state_dict(), path)`."""
    whats = [Module.argument(call, 0, "obj") for call in module.calls("torch.save")]
    return {owner for w in whats if w is not None and (owner := state_of(module.value(w)))}


def loaded_alone(module: Module) -> set[str | None]:
    """The roles of objects that are restored from a file of their own: `optimizer.load_state_dict(torch.load(path))`."""
    found: set[str | None] = set()
    for call in module.method_calls("load_state_dict"):
        match call:
            case ast.Call(ast.Attribute(owner), [state, *_]):
                made = module.value(state)
                if isinstance(made, ast.Call) and module.resolve(made.func) == "torch.load":
                    found.add(role_of_key(last_name(owner)))
    return found


def uncalled(module: Module) -> Iterator[ast.Attribute]:
    """`{"optimizer": optimizer.state_dict}`, `dict(model=model.state_dict)`, `torch.save(model.state_dict, path)`."""
    for node in module.all(ast.Attribute) if module.source.spells("state_dict") else ():
        if node.attr != "state_dict":
            continue
        match module.parent(node):
            case ast.Dict(values=values) if node in values:
                yield node
            case ast.keyword() as up:
                match module.parent(up):
                    case ast.Call(ast.Name("dict")):
                        yield node
            case ast.Call(func, [first, *_]) if first is node:
                if module.resolve(func) == "torch.save":
                    yield node


def concerns(module: Module, saved: Saved, used: Used) -> bool:
    """The object and the save belong to one program part: one class, one function, a global, or a caller and its helper."""
    if saved.module is not module:
        return True
    saving, stepping = module.function(saved.call), module.function(used.node)
    if _made_anew(module, saved, used, saving) or _done_with(module, saved, used, saving):
        return False
    if saving is stepping or module.bindings(used.name, None) or module.bindings(used.name, saving):
        return True
    if (
        stepping is not None
        and saving is not None
        and module.class_(stepping) is module.class_(saving) is not None
    ):
        return used.is_attribute
    if saving is None:
        return False
    homes = [f for f in module.functions.values() if module.bindings(used.name, f)]
    return any(_mentions(module, home, saving) for home in homes)


def _made_anew(module: Module, saved: Saved, used: Used, saving: ast.AST | None) -> bool:
    """Made again in each round of the loop that saves: it has no state to continue from."""
    bound = module.bindings(used.name, saving)
    loops = [up for up in module.parents(saved.call) if isinstance(up, ast.For | ast.While)]
    return bool(bound) and any(
        all(up.lineno < b.lineno <= (up.end_lineno or 0) for b in bound if hasattr(b, "lineno"))
        for up in loops
    )


def _done_with(module: Module, saved: Saved, used: Used, saving: ast.AST | None) -> bool:
    """An optimizer of an earlier stage: the loop that saves begins when it has taken its last step, and does not speak of it."""
    if used.is_attribute or saving is None or not module.bindings(used.name, saving):
        return False
    if isinstance(used.node, ast.Call) and _TRAINS.search(last_name(used.node)):
        return False  # whoever was given it continues with it
    loops = [up for up in module.parents(saved.call) if isinstance(up, ast.For | ast.While)]
    begins = min((loop.lineno for loop in loops), default=0)
    named = [n for n in module.all(ast.Name) if n.id == used.name and module.scope(n) is saving]
    return bool(loops) and all(n.lineno < begins for n in named)


def _mentions(
    module: Module,
    home: ast.FunctionDef | ast.AsyncFunctionDef,
    saving: ast.FunctionDef | ast.AsyncFunctionDef,
) -> bool:
    """Whether a function names the one that saves; `self.save` is that of its own class."""
    owner, here = module.class_(saving), module.class_(home)
    for node in ast.walk(home):
        if is_name(node, saving.name):
            return True
        # not `wandb.save`
        if (
            isinstance(node, ast.Attribute)
            and node.attr == saving.name
            and module.resolve(node) is None
        ):
            own = is_name(node.value, "self")
            if not (own and owner is not None and here is not owner):
                return True
    return False
