"""Runs that continue by themselves: `if os.path.exists(PATH): model = torch.load(PATH)`, and the same PATH is written in the training."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["saved_without_optimizer"]

_EXISTS = frozenset({"exists", "isfile", "is_file"})


def saved_without_optimizer(module: Module) -> Iterator[tuple[ast.Call, ast.Call]]:
    """(the save, the load): the weights alone, of a training whose next start finds and continues them."""
    text = module.source.text
    if ".backward(" not in text or ".step(" not in text or "exists" not in text:
        return
    if any(word in text for word in ("optim_state", "optimizer_state", "optimizer.state_dict", "opt.state_dict")):  # fmt: skip
        return
    loads = {ast.unparse(c.args[0]): c for c in _continuing(module)}
    for save in module.calls("torch.save"):
        if len(save.args) < 2:
            continue
        load = loads.get(ast.unparse(save.args[1]))
        if load is not None and _is_weights(save.args[0]) and _trains(module, save):
            yield save, load


def _continuing(module: Module) -> Iterator[ast.Call]:
    """`torch.load(PATH)` under a test of whether PATH exists, in code that ends before the training begins."""
    for load in module.calls("torch.load"):
        if not load.args:
            continue
        path = ast.unparse(load.args[0])
        for up in module.parents(load):
            if isinstance(up, ast.For | ast.While):
                break
            if isinstance(up, ast.If) and any(
                last_name(c) in _EXISTS and path in ast.unparse(c) for c in below(up.test, ast.Call)
            ):
                yield load
                break


def _is_weights(value: ast.expr) -> bool:
    """A module, or its state: nothing in it but that."""
    match value:
        case ast.Name() | ast.Attribute():
            return True
        case ast.Call(ast.Attribute(attr="state_dict"), []):
            return True
    return False


def _trains(module: Module, save: ast.Call) -> bool:
    """It is written again and again: in a loop around a backward, or in a function that walks back."""
    inside = [up for up in module.parents(save) if isinstance(up, ast.For | ast.While | ast.FunctionDef)]  # fmt: skip
    return any(last_name(c) == "backward" for up in inside for c in below(up, ast.Call))
