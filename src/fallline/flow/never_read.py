"""State that a file saves and nobody reads again: its key is written into the checkpoint, and no load asks for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.checkpoints import Loaded, Saved, loads, role_of_key, saves, state_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["NeverRead", "never_read"]

_STATE = frozenset({"optimizer", "scheduler", "scaler"})
_RESTORES = re.compile(
    r"(?i)(opt|optim)\w*(\[[^\]]*\])?\.load_state_dict\(|_optimizer_state|load_optim"
)
_EVALUATES = re.compile(
    r"(?i)eval|infer|test|predict|export|demo|sample|finetune|fine_tune|pretrain|transfer"
)
_LOADS = re.compile(r"(?i)load|resum|restor")


@dataclass(frozen=True)
class NeverRead:
    """A load of a checkpoint whose optimizer is left where it is."""

    loaded: Loaded
    saved: Saved
    lost: list[str]
    goes_on: bool  # the load takes a step or an epoch too: training continues


def never_read(module: Module) -> Iterator[NeverRead]:
    """Loads of files that this module writes, where nothing in the module, nor in a file that names the key, restores the optimizer."""
    text = module.source.text
    if "torch.load" not in text or _RESTORES.search(text):
        return
    known = [s for s in saves(module) if _kept(s)]
    reads = [r for r in loads(module) if not r.escapes] if known else []
    for loaded in reads:
        if _is_for_use(module, loaded):
            continue
        for saved in known:
            shared = loaded.restored().keys() & saved.entries.keys()
            lost = _unspoken(module, known, _kept(saved))
            if shared and any(role_of_key(k) == "optimizer" for k in lost):
                goes_on = any(role_of_key(k) == "counter" for k in loaded.restored())
                if goes_on or _is_of_a_trainer(module, loaded, saved):
                    yield NeverRead(loaded, saved, lost, goes_on)
                    break


def _kept(saved: Saved) -> list[str]:
    """The keys under which the state of an optimizer, a schedule or a scaler is saved."""
    return [
        key
        for key, value in saved.entries.items()
        if state_of(value) is not None and saved.role(key, value) in _STATE
    ]


def _unspoken(module: Module, known: list[Saved], keys: list[str]) -> list[str]:
    """Those that no line speaks of, beside the dicts that are saved; neither here nor elsewhere in the project."""
    written = {id(v) for saved in known for v in saved.entries.values()}
    saving = {
        id(k)
        for made in module.all(ast.Dict)
        if any(id(v) in written for v in made.values)
        for k in made.keys
    }
    said = {c.value for c in module.all(ast.Constant) if id(c) not in saving}
    # `state[key]`, `for name, thing in parts.items(): thing.load_state_dict(state[name])`
    lost = [k for k in keys if k not in said]
    lost = [k for k in lost if not re.search(rf"#.*{re.escape(k)}", module.source.text)]
    return [k for k in lost if not _named_elsewhere(module, k)]


def _named_elsewhere(module: Module, key: str) -> bool:
    if module.project is None:
        return False
    quoted = re.compile(
        rf"""\[\s*["']{re.escape(key)}["']\s*\](?!\s*=[^=])|get\(\s*["']{re.escape(key)}["']"""
    )
    return any(quoted.search(text) for _, text in module.project.naming(module, key))


def _is_for_use(module: Module, loaded: Loaded) -> bool:
    """It is loaded to be evaluated, by the name of the function or of the test around it."""
    for up in module.parents(loaded.call):
        match up:
            case ast.FunctionDef(name=name) if _EVALUATES.search(name):
                return True
            case ast.If(test) if _EVALUATES.search(module.segment(test)):
                return True
    return False


def _is_of_a_trainer(module: Module, loaded: Loaded, saved: Saved) -> bool:
    """Two methods of one class, which steps its own optimizer: one writes the file and one called after loading takes it up again."""
    cls = module.class_(loaded.call)
    function = module.function(loaded.call)
    if cls is None or cls is not module.class_(saved.call) or function is None:
        return False
    if not _LOADS.search(getattr(function, "name", "")):
        return False
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr == "step"
        and "opt" in module.segment(c.func.value).lower()
        for c in below(cls, ast.Call)
    )
