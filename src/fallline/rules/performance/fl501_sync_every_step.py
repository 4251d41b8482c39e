"""FL501 sync-every-step: the host waits for the device on every iteration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fallline.events import Sync, Trace, on_every_iteration
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule

_WHAT = {
    "item": ".item()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "tolist": ".tolist()",
    "print": "Printing a tensor",
    "float": "float(tensor)",
}


class SyncEveryStep(Rule):
    code = "FL501"
    name = "sync-every-step"
    severity = Severity.INFO
    what = "A value is fetched from the device on every training iteration: `.item()`, `.cpu()`, `print(tensor)`."
    why = (
        "A GPU works through a queue while Python fills it. Fetching a value waits until the queue is empty, and the device then idles until Python has queued "
        "new work: Python's time and the device's add up where they could overlap."
    )
    instead = "Sum up on the device (`total += loss.detach()`) and fetch once every so many steps."
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
    )
    tokens = (b".backward(",)

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0.0
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    total += loss.item()  # FL501
print(total)
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
outputs = []
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    output = model(x.to(device))
    loss = output.pow(2).mean()
    loss.backward()
    optimizer.step()
    outputs.append(output.detach().cpu())  # FL501
""",
    )
    right = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = torch.zeros((), device=device)
for i, x in enumerate(torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    if i % 100 == 0:
        print(loss.item())
print(total.item())
""",
        """\
import torch
from torch import nn

# On the CPU there is no queue to wait for.
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0.0
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total)
""",
        """\
import torch
from torch import nn

# Evaluation fetches its results; training does not wait.
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(model(x.to(device)).pow(2).mean().item() for x in loader))
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        by_place: dict[Location, list[Sync]] = defaultdict(list)
        for sync in trace.of(Sync):
            if sync.device not in {None, "cpu"} and not sync.per_parameter:
                by_place[sync.at].append(sync)
        for syncs in by_place.values():
            if on_every_iteration(trace, syncs):
                what = _WHAT.get(syncs[0].what or "", "Fetching a value")
                yield self.finding(
                    syncs[0],
                    f"{what} on every iteration makes Python wait for the device each time. Sum up on the device, and fetch the value every N steps.",
                )
