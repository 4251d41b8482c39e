"""FL028: targets or inputs that cannot teach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.rules._observed import Observed
from fallline.syntax import Module


class TargetsDegenerate(Observed):
    code = "FL028"
    name = "targets-degenerate"
    severity = Severity.WARNING
    what = """\
Finds targets that are the same for every sample of the first batches, and inputs that are all zero or all the same. Notes images on the scale of bytes and images whose channels come last."""
    why = """\
A constant target is learned by the bias alone: the loss falls to zero and the model ignores its input. A data set that is sorted by class does the same for a while, batch after batch."""
    instead = """\
Look at a batch, then shuffle, or correct the column that is read.

- `DataLoader(dataset, shuffle=True)`
- `images = images.float() / 255`"""

    tokens = (b"TensorDataset",)
    wrong = (
        """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long))  # FL028
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    right = (
        """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if module.is_unit_test or not any(module.method_calls("backward")):
            return
        for call in module.calls("torch.utils.data.TensorDataset"):
            if len(call.args) == 2 and _is_constant(module, call.args[1]):
                yield self.finding(
                    module.location(call),
                    "All targets of this dataset are the same number, so the bias alone can learn them. Use the targets that belong to the inputs",
                )

    def says(self, entry: dict[str, Any]) -> str:
        match entry["what"]:
            case "targets":
                return (
                    f"All {entry['samples']:,} targets of the first batches are {entry['value']:g}, so the bias alone can learn them. "
                    "Shuffle the data, or check which column the targets come from"
                )
            case "inputs":
                how = "all zero" if entry["why"] == "zero" else "all the same"
                return f"The {entry['samples']:,} samples of the first batches are {how}: there is nothing to learn from them. Check how they are loaded"
            case "scale":
                return f"The images go from {entry['low']:g} to {entry['high']:g}, like bytes. Divide them by 255 and normalise them, or the first layer saturates"
        shape = "×".join(map(str, entry["shape"]))
        return f"The images are {shape}, with the channels last, but convolutions take them first. Use `images.permute(0, 3, 1, 2)`"

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        return Severity.INFO if entry["what"] in ("scale", "channels") else None


def _is_constant(module: Module, node: ast.expr) -> bool:
    """`torch.zeros(n)`, and nothing writes into it."""
    made = module.value(node)
    if not isinstance(made, ast.Call) or last_name(made) not in ("zeros", "ones", "full"):
        return False
    if not (module.resolve(made.func) or "").startswith("torch."):
        return False
    return not isinstance(node, ast.Name) or not _written(module, node.id)


def _written(module: Module, name: str) -> bool:
    """`labels[n:] = 1`, `labels.fill_(...)`."""
    for use in module.all(ast.Name):
        if use.id == name:
            match module.parent(use):
                case ast.Subscript(ctx=ast.Store()):
                    return True
                case ast.Attribute(attr=attr) if attr.endswith("_"):
                    return True
    return False
