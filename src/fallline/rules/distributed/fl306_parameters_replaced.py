"""FL306: parameters are replaced after the optimizer (or DDP) took hold of the old ones."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Replace, Step, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule

_WHAT = {
    "recreated": "The model is built again",
    "head": "A part of the model is replaced",
    "fsdp1": "FSDP flattens the parameters into new ones",
    "moved": "The model is moved",
}
_THEN = {
    "recreated": "Build the optimizer after the model",
    "head": "Replace it before building the optimizer, or hand the new parameters to optimizer.add_param_group",
    "fsdp1": "Build the optimizer after wrapping",
    "moved": "Move the model before wrapping it in DDP",
}


class ParametersReplaced(Rule):
    code = "FL306"
    name = "parameters-replaced"
    severity = Severity.ERROR
    what = """\
Parameters are replaced after the optimizer, or DDP, took the old ones.

The model is built again, gets a new head, is wrapped by FSDP1, or is moved after DDP wrapped it. Wrapping in DDP after building the optimizer is harmless: it keeps the parameters."""
    why = """\
The optimizer continues to step tensors that are no longer in the model, so the new parameters stay as they were initialised.

Nothing raises: the loss is computed, the gradients arrive, the step runs."""
    instead = """\
Build the model first, complete and on its device; then wrap it; then build the optimizer.

```python
model = Net()
model.head = torch.nn.Linear(64, classes)
model = FSDP(model.to(device))
optimizer = torch.optim.AdamW(model.parameters())
```"""

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(Replace):
            if not _trains_on(trace, event):
                continue
            what = event.what or ""
            holder = "DDP" if what == "moved" else "the optimizer"
            yield self.finding(
                event,
                f"{_WHAT.get(what, 'Parameters are replaced')} after {holder} took the old parameters, so the new ones are never updated. "
                f"{_THEN.get(what, 'Build the optimizer last')}.",
            )

    wrong = (
        """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[1] = torch.nn.Linear(8, 2)  # FL306
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
        """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 100)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.head = torch.nn.Linear(8, 2)  # FL306
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
    )
    right = (
        # the head first
        """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 100)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


model = Net()
model.head = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
        # DDP keeps the parameters
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = DistributedDataParallel(model)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
        # the new parameters are handed to the optimizer
        """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 100))
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
model[1] = torch.nn.Linear(8, 2)
optimizer.add_param_group({"params": model[1].parameters()})
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    optimizer.step()
""",
        # a new model with an optimizer of its own for each fold
        """\
import torch

for fold in range(2):
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
""",
    )


def _trains_on(trace: Trace, event: Replace) -> bool:
    """The holder of the old parameters is stepped again: not a model loaded for evaluation, nor the next fold."""
    later = {e.optimizer for e in trace.after(event).of(Step)}
    if event.optimizer is not None:
        return event.optimizer in later
    old = event.parameters or frozenset()
    return any(not old.isdisjoint(trace.held_by(optimizer) or ()) for optimizer in later)
