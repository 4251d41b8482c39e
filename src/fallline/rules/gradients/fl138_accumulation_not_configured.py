"""FL138: Accelerate accumulates over a count that nobody gave it, or divides by one that nothing uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import walk

__all__ = ["AccumulationNotConfigured"]

_COUNT = "gradient_accumulation_steps"
_PLUGINS = frozenset(
    {"gradient_accumulation_plugin", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin"}
)
# Other ways in which a loop decides when to step.
_BY_HAND = frozenset({"no_sync", "sync_gradients", "_do_sync"})


class AccumulationNotConfigured(Rule):
    code = "FL138"
    name = "accumulation-not-configured"
    severity = Severity.ERROR
    what = (
        "Finds `accelerator.accumulate(model)` where the Accelerator was made without `gradient_accumulation_steps`, and an Accelerator with a count in a "
        "loop that never accumulates."
    )
    why = (
        "`accumulate()` takes the count from the Accelerator, and without one it is 1: every micro-batch is a step, on a batch that is k times smaller "
        "than planned. The other way round, `accelerator.backward` divides the loss by the count in any case, so a loop that steps on every batch has "
        "gradients that are k times too small."
    )
    instead = (
        "Give the count to the Accelerator, and wrap the step:\n\n"
        "```python\naccelerator = Accelerator(gradient_accumulation_steps=4)\n"
        "for batch in loader:\n    with accelerator.accumulate(model):\n        accelerator.backward(loss_fn(model(batch)))\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n```"
    )
    references = ("https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",)
    tokens = (b"Accelerator",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if any(_sets_count(n) for n in module.all(ast.Attribute)):
            return
        for made in module.calls("accelerate.Accelerator"):
            if any(k.arg is None or k.arg in _PLUGINS for k in made.keywords):
                continue
            count = module.argument(made, None, _COUNT)
            uses = [c for c in module.method_calls("accumulate") if _is_on(module, c, made)]
            if count is None and uses:
                yield self.finding(
                    module.location(made),
                    f"This Accelerator has no {_COUNT}, so accumulate() at line {uses[0].lineno} steps the optimizer on every micro-batch. "
                    f"Pass {_COUNT} (or set ACCELERATE_GRADIENT_ACCUMULATION_STEPS).",
                )
            elif count is not None and not uses and _steps_each_time(module, made, count):
                yield self.finding(
                    module.location(made),
                    f"The Accelerator divides each loss by {_COUNT}, but no accumulate() makes the optimizer wait for that many micro-batches, so its "
                    "gradients are that many times too small. Wrap the step in accelerator.accumulate(model).",
                )

    wrong = (
        """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")  # FL138
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(inputs).mean())
        optimizer.step()
        optimizer.zero_grad()
""",
        """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)  # FL138
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs in loader:
    optimizer.zero_grad()
    accelerator.backward(model(inputs).mean())
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(inputs).mean())
        optimizer.step()
        optimizer.zero_grad()
""",
        """\
import torch
from accelerate import Accelerator

# The loop decides itself when to step.
accelerator = Accelerator(gradient_accumulation_steps=4)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for i, inputs in enumerate(loader):
    accelerator.backward(model(inputs).mean())
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    )


def _is_on(module: Module, call: ast.Call, made: ast.Call) -> bool:
    """The call is a method of what this constructor made, by the name that it was given there."""
    chosen = module.parent(made)  # `Accelerator(...) if args.track else Accelerator()`
    match module.parent(chosen) if isinstance(chosen, ast.IfExp) else chosen, call.func:
        case ast.Assign([ast.Name(name)]), ast.Attribute(ast.Name(used)):
            seen_there = module.scope(made) in (None, module.scope(call))
            return name == used and seen_there
        case ast.Assign([ast.Attribute() as target]), ast.Attribute(ast.Attribute() as used):
            same_class = module.class_(made) is module.class_(call)
            return module.segment(target) == module.segment(used) and same_class
    return False


def _steps_each_time(module: Module, made: ast.Call, count: ast.expr) -> bool:
    """This file calls backward and step in one loop with the Accelerator, and never waits for a boundary."""
    if module.constant(count) == 1:
        return False
    mine = [c for c in module.method_calls("backward") if _is_on(module, c, made)]
    if not mine or any(_decides(n) for n in walk(module.tree)):
        return False
    return all(any(c.lineno < s.lineno for s in module.method_calls("step")) for c in mine)


def _decides(node: ast.AST) -> bool:
    """Something that a loop can wait with."""
    match node:
        case ast.BinOp(op=ast.Mod()):
            return True
        case ast.Attribute(attr=name) if name in _BY_HAND:
            return True
    return False


def _sets_count(node: ast.Attribute) -> bool:
    """`accelerator.gradient_accumulation_steps = n`."""
    return node.attr == _COUNT and isinstance(node.ctx, ast.Store)
