"""FL405 checkpoint-reentrant: activation checkpointing without saying which kind."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_NAMES = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")


class CheckpointReentrant(Rule):
    code = "FL405"
    name = "checkpoint-reentrant"
    severity = Severity.INFO
    what = "`torch.utils.checkpoint.checkpoint` is called without `use_reentrant`, which still means the old reentrant kind."
    why = (
        "The reentrant kind gives no gradients when no input of the block requires one (frozen embeddings, the first block), takes no keyword arguments, and "
        "does not work with `torch.autograd.grad`. torch warns on every call, and has announced that leaving it out will raise."
    )
    instead = "`checkpoint(block, x, use_reentrant=False)`."
    fix_safety = (
        "Adds `use_reentrant=False`: the same gradients, computed without a nested backward."
    )
    facts = ("checkpointing-is-exact",)
    references = ("https://docs.pytorch.org/docs/stable/checkpoint.html",)
    tokens = (b"checkpoint",)

    wrong = (
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return checkpoint(self.block, x)  # FL405
""",
        """\
import torch.utils.checkpoint as cp


def forward(blocks, x):
    x = cp.checkpoint_sequential(blocks, 4, x, preserve_rng_state=True)  # FL405
    return x
""",
    )
    right = (
        """\
from torch.utils.checkpoint import checkpoint


def forward(block, x, options):
    x = checkpoint(block, x, use_reentrant=False)
    x = checkpoint(block, x, use_reentrant=True)  # said on purpose
    return checkpoint(block, x, **options)
""",
        """\
from functools import partial

from torch.utils.checkpoint import checkpoint

run = partial(checkpoint, use_reentrant=False)


def forward(block, x):
    return run(block, x)
""",
        """\
from project.saving import checkpoint


def save(model):
    checkpoint(model, "last.pt")
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls(*_NAMES):
            if call.args and not any(k.arg in {None, "use_reentrant"} for k in call.keywords):
                yield self.finding(
                    module.location(call),
                    "checkpoint() without use_reentrant uses the old reentrant variant, which gives no gradients if no input requires one. Pass use_reentrant=False.",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = next((c for c in module.calls(*_NAMES) if module.location(c) == finding.at), None)
        if call is None:
            return None
        edit = Editor(module).add_argument(call, "use_reentrant=False")
        return Fix("Use the non-reentrant kind", (edit,))
