"""FL407: a checkpointed block with dropout is recomputed with different random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Fix, Severity
from fallline.flow.parts import makes
from fallline.rules._observed import Observed
from fallline.syntax import Editor, Module

__all__ = ["CheckpointRngDropped"]

_NAMES = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")
_OPTION = "preserve_rng_state"


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
            if off and call.args and makes(module, call.args[0], _is_dropout):
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


def _is_dropout(name: str) -> bool:
    return name.startswith("torch.") and "dropout" in name.lower()
