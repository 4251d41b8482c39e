"""FL407: a checkpointed block with dropout is recomputed with different random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import of_self
from fallline.flow.modules import module_class
from fallline.rules._observed import Observed
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, methods_of

__all__ = ["CheckpointRngDropped"]

_NAMES = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
_OPTION = "preserve_rng_state"
_DEPTH = 3


class CheckpointRngDropped(Observed):
    code = "FL407"
    name = "checkpoint-rng-dropped"
    severity = Severity.ERROR
    what = "Finds activation checkpointing with `preserve_rng_state=False` around a block that has dropout."
    why = (
        "Checkpointing runs the block again in the backward pass. Without the random state of the first run, dropout draws a different mask, so "
        "the gradients belong to activations that the loss has never seen. Nothing raises; the updates are noise in every parameter before the dropout."
    )
    instead = "Leave the option out: the default keeps the random state.\n\n```python\nx = checkpoint(self.block, x, use_reentrant=False)\n```"
    fix_safety = "Removes `preserve_rng_state=False`. Saving the random state costs a few microseconds for each call."
    references = ("https://docs.pytorch.org/docs/stable/checkpoint.html",)
    tokens = (b"preserve_rng_state",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls(*_NAMES):
            off = module.constant(module.argument(call, None, _OPTION)) is False
            if off and call.args and _has_dropout(module, call.args[0]):
                yield self.finding(
                    module.location(call),
                    "This block has dropout and is recomputed without the random state of its first run, so backward uses a different dropout mask and "
                    "the gradients are wrong. Remove preserve_rng_state=False.",
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            "This checkpointed block draws random numbers (dropout) and is recomputed without the random state of its first run, so backward uses "
            "a different dropout mask and the gradients are wrong. Remove preserve_rng_state=False"
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        edit = Editor(module).remove_keyword(call, _OPTION) if call is not None else None
        return Fix("Keep the random state", (edit,)) if edit is not None else None

    wrong = (
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)  # FL407
""",
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.1, self.training)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # FL407
        return x
""",
    )
    right = (
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))
        self.plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        x = checkpoint(self.plain, x, use_reentrant=False, preserve_rng_state=False)
        return checkpoint(self.block, x, use_reentrant=False)
""",
    )


def _has_dropout(module: Module, block: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether what is checkpointed is known to draw random numbers for dropout."""
    if depth == 0:
        return False
    return any(_in(home, node, depth) for home, node in _meant(module, block))


def _in(module: Module, code: ast.AST, depth: int) -> bool:
    """Dropout in this piece of code, or in a class that it makes an object of."""
    for call in (n for n in below(code, ast.Call)):
        name = module.resolve(call.func) or ""
        if name.startswith("torch.") and "dropout" in name.lower():
            return True
        found = module_class(module, call.func)
        if found is not None and depth and _in(found[0], found[1], depth - 1):
            return True
    return False


def _meant(module: Module, block: ast.expr) -> Iterator[tuple[Module, ast.AST]]:
    """The code behind what is checkpointed: what an attribute holds, a loop runs over, a name is bound to."""
    yield module, block
    name, cls = of_self(block), module.class_(block)
    if name is not None and cls is not None:
        yield from ((module, value) for value in module.attribute_values(cls, name))
        yield from ((module, d) for d in methods_of(cls) if d.name == name)  # fmt: skip
    if isinstance(block, ast.Name):
        if block.id in module.functions:
            yield module, module.functions[block.id]
        for bound in module.bindings(block.id, module.scope(block)):
            match module.parent(bound):
                case ast.For(iter=source) | ast.Assign(value=source):
                    yield from _meant(module, source)
