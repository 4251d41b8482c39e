"""FL113: a clipping threshold that clips everything, or is not a threshold at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import scale_free
from fallline.finding import Finding, Severity
from fallline.flow.numbers_given import number_given
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ClipThresholdExtreme"]

# At 0.01 SGD all but stands still in FL113's experiment.
_SMALLEST = 0.01
_FUNCTIONS = {"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm"}


class ClipThresholdExtreme(Rule):
    code = "FL113"
    name = "clip-threshold-extreme"
    severity = Severity.WARNING
    what = "Finds a `max_norm` that is not positive, or so small (0.01 and below) that it clips every update."
    why = (
        "A threshold below every norm is a learning rate in disguise: SGD hardly moves. "
        "Zero removes the gradient, and a negative value turns the update around."
    )
    instead = "Take the threshold from the norms of your own run, for instance a high quantile of them:\n\n```python\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n```"
    facts = ("over-clipping-by-optimizer", "threshold-from-quantiles")
    tokens = (b"clip_grad",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.all(ast.Call):
            node = _threshold(module, call)
            limit = number_given(module, node)
            if node is None or limit is None or limit > _SMALLEST or _guarded(module, call, node):
                continue
            if limit <= 0:
                message = f"max_norm is {limit:g}, so the gradients become zero or change sign. Use a positive threshold, or remove the clip."
            else:
                message = (
                    f"max_norm is {limit:g}, so small that every update is clipped; for SGD that is a tiny learning rate in disguise. "
                    "Take the threshold from the norms of your own run."
                )
            yield self.finding(
                module.location(call),
                message,
                severity=Severity.INFO if limit > 0 and _scale_free(module) else None,
                max_norm=limit,
            )

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-4)  # FL113
        optimizer.step()
""",
        SETUP
        + """
from torch.nn.utils import clip_grad_norm_

MAX_NORM = -1.0


def update(x, y):
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    clip_grad_norm_(model.parameters(), max_norm=MAX_NORM)  # FL113
    optimizer.step()


for epoch in range(2):
    for x, y in loader:
        update(x, y)
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        optimizer.step()
""",
        # zero switches clipping off, and the test knows it
        SETUP
        + """
max_norm = 0.0  # 0 switches clipping off
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        if max_norm > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
""",
        # only measured
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
""",
    )


def _scale_free(module: Module) -> bool:
    """Every optimizer that this file makes divides by the size of the gradient itself, as Adam does: the threshold takes nothing away."""
    made = (module.resolve(call.func) or "" for call in module.all(ast.Call))
    types = {name.rpartition(".")[2] for name in made if name.startswith("torch.optim.")}
    types = {name for name in types if name[:1].isupper() and not name.endswith("LR")}
    return bool(types) and all(map(scale_free, types))


def _threshold(module: Module, call: ast.Call) -> ast.expr | None:
    """The threshold given to a clip by norm, torch's own or a method of a wrapper, an accelerator or a fabric."""
    if module.resolve(call.func) in _FUNCTIONS:
        return module.argument(call, 1, "max_norm")
    if not isinstance(call.func, ast.Attribute) or module.resolve(call.func):
        return None
    if call.func.attr == "clip_grad_norm_":
        # model.clip_grad_norm_(1.0) takes the threshold first, accelerator.clip_grad_norm_(parameters, 1.0) second
        return module.argument(call, 0 if len(call.args) == 1 else 1, "max_norm")
    return module.argument(call, None, "max_norm") if call.func.attr == "clip_gradients" else None


def _guarded(module: Module, call: ast.Call, threshold: ast.expr) -> bool:
    """Inside an if that asks about the threshold itself: the extreme value never gets here."""
    if isinstance(threshold, ast.Constant):
        return False
    text = ast.dump(threshold)
    return any(
        isinstance(up, ast.If | ast.IfExp) and text in ast.dump(up.test)
        for up in module.parents(call)
    )
