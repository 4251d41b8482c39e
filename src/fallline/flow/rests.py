"""Parts of a model that its constructor puts into eval mode, which the first `model.train()` undoes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.flow.calls import of_self
from fallline.flow.containers import self_assignment
from fallline.flow.modes import class_has_mode
from fallline.flow.modules import has_state, module_class
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import methods_of, walk, written

__all__ = ["Rest", "undone_by_train"]

# Models of this name have BatchNorm; of those with a `.fc` it is nearly always a ResNet.
_NORMALISES = re.compile(
    r"resnet|resnext|efficientnet|densenet|mobilenet|inception|batch_?norm", re.IGNORECASE
)


@dataclass(frozen=True)
class Rest:
    """`self.<part>.eval()` in a constructor. `has_mode`: whether the part was seen to compute something else in train mode."""

    call: ast.Call
    part: str
    has_mode: bool


def undone_by_train(module: Module) -> Iterator[Rest]:
    """Frozen parts of models that also learn, of classes that leave `train()` as it is."""
    for cls in module.all(ast.ClassDef) if module.method_calls("eval") else ():
        methods = {m.name: m for m in methods_of(cls)}
        init = methods.get("__init__")
        if set(module.bases(cls)) != {"torch.nn.Module"} or init is None or "train" in methods:
            continue
        for statement in init.body:
            match statement:
                case ast.Expr(ast.Call(ast.Attribute(held, "eval"), []) as call):
                    part = of_self(held)
                case _:
                    continue
            if part is None or not _is_frozen(init, part) or not _learns_beside(module, cls, part):
                continue
            mode = _has_mode(module, cls, part)
            if mode is not False and not _rests_again(module, part):
                yield Rest(call, part, mode is True)


def _is_frozen(init: ast.FunctionDef, part: str) -> bool:
    """`for p in self.<part>.parameters(): p.requires_grad = False`, or `requires_grad_(False)`."""
    text = written(init)
    return f"self.{part}" in text and re.search(r"requires_grad(_\(| = )False", text) is not None


def _learns_beside(module: Module, cls: ast.ClassDef, part: str) -> bool:
    """Another part that has weights, so that somebody trains the whole."""
    for statement in (n for n in walk(cls) if isinstance(n, ast.Assign)):
        name, value = self_assignment(statement)
        if name not in {None, part} and value is not None and has_state(module, value):
            return True
    return False


def _has_mode(module: Module, cls: ast.ClassDef, part: str) -> bool | None:
    """Whether the part computes something else in train mode; None where it is not seen."""
    for value in module.attribute_values(cls, part):
        made = values_of(module).built(value)
        if isinstance(made, ast.Call):
            found = module_class(module, made.func)
            if found is not None:
                return class_has_mode(*found)
            if _NORMALISES.search(written(made.func)):
                return True
    head = any(
        isinstance(n, ast.Attribute) and n.attr == "fc" and of_self(n.value) == part
        for n in walk(cls)
    )
    return True if head else None


def _rests_again(module: Module, part: str) -> bool:
    """Somewhere else the part is put into eval mode once more, or its mode is set."""
    again = re.compile(rf"\.{part}\.(eval|train)\(")
    if len(again.findall(module.source.text)) > 1:
        return True
    others = module.project.beside(module, b".eval(") if module.project is not None else ()
    return any(again.search(other.source.text) for other in others)
