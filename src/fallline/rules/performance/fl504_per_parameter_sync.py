"""FL504 per-parameter-sync: the host waits for the device once for every parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fallline.events import Sync, Trace, on_every_iteration
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule


class PerParameterSync(Rule):
    code = "FL504"
    name = "per-parameter-sync"
    severity = Severity.INFO
    what = "A Python loop over parameters fetches one value from the device for each of them: `p.grad.norm().item()`."
    why = (
        "Each `.item()` waits until the device has finished everything queued before it. A model with 300 parameter tensors waits 300 times per step for "
        "300 numbers, where one wait would do."
    )
    instead = "Compute all norms in one call and fetch once: `torch.nn.utils.get_total_norm(grads)`, `torch._foreach_norm(grads)`, or `fallline.watch`."
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
    )
    tokens = (b"parameters(",)

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2  # FL504
    optimizer.step()
""",
        """\
import torch
from torch import nn


def gradient_norms(model):
    norms = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            norms[name] = p.grad.norm().item()  # FL504
    return norms


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    norms = gradient_norms(model)
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    norms = torch._foreach_norm([p.grad for p in model.parameters()])
    total = torch.linalg.vector_norm(torch.stack(norms))
    optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
count = 0
for p in model.parameters():
    count += p.numel()
print(count)
""",
        """\
import torch
from torch import nn

# Once, after training, nobody waits for it.
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
for name, p in model.named_parameters():
    print(name, p.norm().item())
""",
        """\
import torch
from torch import nn


# Gradients are plotted, for one network after the other: nothing is trained here.
def plot_gradients(net, x):
    net.zero_grad()
    net(x).pow(2).mean().backward()
    return {name: p.grad.view(-1).cpu().numpy() for name, p in net.named_parameters()}


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
for activation in (nn.ReLU, nn.Tanh, nn.GELU):
    net = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 1)).to(device)
    print(plot_gradients(net, torch.randn(32, 4, device=device)).keys())
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        by_place: dict[Location, list[Sync]] = defaultdict(list)
        for sync in trace.of(Sync):
            if sync.per_parameter and sync.device != "cpu":
                by_place[sync.at].append(sync)
        for syncs in by_place.values():
            if on_every_iteration(trace, syncs):
                yield self.finding(
                    syncs[0],
                    "Python waits for the device once for each parameter, on every iteration. Compute the norms together on the device, and fetch the result once.",
                    # what the waits cost shows only in a run: of 58 that were judged in source, 8 were worth a change
                    severity=Severity.WARNING if trace.live else None,
                )
