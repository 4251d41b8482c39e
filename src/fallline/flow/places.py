"""Where a gradient passes although nothing is called a loss: forward passes, files of losses, helpers that others call.

A zero under a square root is as bad in a layer as in a loss; what is known of such a place is less, so a finding there is a note.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from fallline.flow.calls import last_name, of_self
from fallline.flow.losses import differentiated, in_loss
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of

__all__ = ["in_training", "passes_gradient"]

# Files whose functions see data, or numbers that nobody differentiates.
_OTHER_FILES = re.compile(
    r"data|metric|eval|util_?s?_?plot|visual|transform|augment|preprocess|sampler|schedul|export|infer|convert|test|config|optim"
)
_OF_LOSSES = re.compile(r"loss|criteri|objective")
# What such a class gives is summed up to a loss: `log_prob` of a distribution, `kl` of a layer.
_LIKELIHOOD = re.compile(
    r"^_?log_(p|q|prob|px|pz|pdf|likelihood|det)\w*$|^_?(forward|inverse)_?\w*$"
)
_OF_MASKS = re.compile(r"(^|_)masked_\w+|_with_masks?$|(^|_)whiten")
_FOLLOWED = 3


def in_training(module: Module, node: ast.AST) -> bool:
    """In a loss, or anywhere else that a gradient is likely to pass."""
    return in_loss(module, node) or passes_gradient(module, node)


def passes_gradient(module: Module, node: ast.AST) -> bool:
    """In the forward pass of a module, in a file of losses, or in a helper for tensors that other files call."""
    function = module.function(node)
    if function is None or not differentiated(module, node):
        return False
    cls = module.class_(node)
    if cls is not None:
        return _in_forward(module, cls, function) or _of_losses(module, function)
    return _of_losses(module, function) or _is_helper(module, function)


def _of_losses(module: Module, function: ast.AST) -> bool:
    """In `losses/` or `loss.py`, but not where a class is set up."""
    named = [PurePath(module.path).stem, PurePath(module.path).parent.name]
    return getattr(function, "name", "") != "__init__" and any(
        _OF_LOSSES.search(part.lower()) for part in named
    )


def _in_forward(module: Module, cls: ast.ClassDef, function: ast.AST) -> bool:
    """`forward`, what it calls on itself, and what gives a likelihood."""
    name = getattr(function, "name", "")
    if not _learns(module, cls):
        return False
    return _LIKELIHOOD.search(name) is not None or name in _called_by_forward(cls)


def _learns(module: Module, cls: ast.ClassDef) -> bool:
    """A module, or a class of the project that has a `forward` of its own."""
    return module.is_module_class(cls) or any(
        m.name in {"forward", "log_prob", "inverse"} for m in methods_of(cls)
    )


def _called_by_forward(cls: ast.ClassDef) -> set[str]:
    methods = {m.name: m for m in methods_of(cls)}
    found = {"forward"} & methods.keys()
    for _ in range(_FOLLOWED):
        calls = (c for name in found for c in below(methods[name], ast.Call))
        found = found | ({of_self(c.func) or "" for c in calls} & methods.keys())
    return found


def _is_helper(module: Module, function: ast.AST) -> bool:
    """A function of tensors that such places call, or nothing in its own file: by its name and its file, it is called from training."""
    path = PurePath(module.path)
    if not isinstance(function, ast.FunctionDef) or module.parent(function) is not module.tree:
        return False
    if _OF_MASKS.search(function.name):
        return True
    if _OTHER_FILES.search(path.stem.lower()) or _OTHER_FILES.search(path.parent.name.lower()):
        return False
    calls = values_of(module).calls_of(function)
    here = any(
        passes_gradient(module, call) for call in calls[:8] if module.function(call) is not function
    )
    return (here or not calls) and _only_torch(module, function)


def _only_torch(module: Module, function: ast.FunctionDef) -> bool:
    """It calls torch or tensors, returns something, and touches neither numpy nor files nor the command line."""
    resolved = {module.resolve(c.func) for c in below(function, ast.Call)}
    torch = any(name is not None and name.startswith("torch.") for name in resolved)
    tensors = torch or any(
        last_name(c) in {"sum", "pow", "mean", "sqrt"} for c in below(function, ast.Call)
    )
    other = any(name.startswith(("numpy.", "os.", "PIL.", "cv2.")) for name in resolved if name)
    returns = any(r.value is not None for r in below(function, ast.Return))
    return tensors and returns and not other
