"""Classes that are modules by what they do: a base that cannot be seen, layers kept as attributes, and a forward that uses them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from fallline.syntax.nodes import below, methods_called

__all__ = ["MODULES", "is_module_by_name", "keeps_layers"]

MODULES = frozenset(
    {
        "torch.nn.Module",
        "torch.optim.swa_utils.AveragedModel",
        "lightning.LightningModule",
        "pytorch_lightning.LightningModule",
        "lightning.pytorch.LightningModule",
    }
)


def is_module_by_name(base: str) -> bool:
    last = base.rpartition(".")[2]
    of_torch = base.startswith("torch.nn.") and last[:1].isupper() and base != "torch.nn.Parameter"
    return base in MODULES or of_torch or last in {"PreTrainedModel", "LightningModule"}


def keeps_layers(cls: ast.ClassDef, resolve: Callable[[ast.expr], str | None]) -> bool:
    """`self.fc = nn.Linear(4, 2)` in `__init__`, after `super().__init__()`, and `self.fc(x)` in `forward`."""
    methods = {m.name: m for m in cls.body if isinstance(m, ast.FunctionDef)}
    init, forward = methods.get("__init__"), methods.get("forward")
    if init is None or forward is None or len(forward.args.args) < 2:
        return False
    called = methods_called(forward)
    begun = kept = False
    for node in below(init, ast.Call, ast.Assign):
        match node:
            case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__")):
                begun = True
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(func)):
                if name in called and (resolve(func) or "").startswith("torch.nn."):
                    kept = True
    return begun and kept
