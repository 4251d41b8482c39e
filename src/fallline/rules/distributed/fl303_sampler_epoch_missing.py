"""FL303: a shuffling DistributedSampler never gets set_epoch over several epochs."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Epoch, EpochEnd, Loader, Sampler, SamplerEpoch, Trace
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule


class SamplerEpochMissing(Rule):
    code = "FL303"
    name = "sampler-epoch-missing"
    severity = Severity.ERROR
    what = """\
A `DistributedSampler` shuffles the data of several epochs and `set_epoch` is never called."""
    why = """\
The sampler shuffles with `seed + epoch`, and the epoch stays 0: the order is identical in every epoch, and every rank sees the same part of the data each time.

Nothing raises, and one epoch looks right."""
    instead = """\
Call `set_epoch` at the start of every epoch.

```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        ...
```"""
    facts = ("distributed-setup",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        # `if isinstance(loader.sampler, DistributedSampler): set_epoch` is a switch that may not go with the sampler
        if trace.hides("epoch") or any("sampler" in setting for setting in trace.settings):
            return
        for sampler in trace.objects_of(Sampler):
            if not _shuffles(sampler) or sampler.at is None:
                continue
            loaders = {o.id for o in trace.objects_of(Loader) if o.sampler == sampler.id}
            passes = [e for e in trace.of(Epoch) if e.loader in loaders and _trains(trace, e)]
            called = any(_may_be(trace, e, sampler) for e in trace.of(SamplerEpoch))
            if len(passes) > 1 and not called:
                yield self.finding(
                    sampler.at,
                    "This DistributedSampler shuffles but set_epoch is never called, so every epoch has the same order. Call sampler.set_epoch(epoch) "
                    f"before the loop over the data ({passes[0].at.near(sampler.at)}).",
                )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """A sampler that some setting tells its epoch is told on purpose in that one only."""
        called = {e.sampler for e in trace.of(SamplerEpoch)}
        for sampler in trace.objects_of(Sampler):
            if sampler.at is not None and called & {None, sampler.id}:
                yield sampler.at

    wrong = (
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)  # FL303
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def loaders(rank, world_size):
    data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=True)  # FL303
    return DataLoader(data, batch_size=8, sampler=sampler)


def train_one_epoch(model, loader, optimizer):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def main():
    loader = loaders(0, 2)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train_one_epoch(model, loader, optimizer)


main()
""",
    )
    right = (
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        # no shuffling
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, 0, shuffle=False))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        # one epoch
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
""",
        # the order of validation data does not matter
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=8, sampler=sampler)
checks = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for inputs, targets in checks:
            model(inputs)
""",
    )


def _shuffles(sampler: Sampler) -> bool:
    # a sampler that does not say otherwise shuffles, but only a door that knows it says so
    return sampler.type == "DistributedSampler" and sampler.shuffle is True


def _may_be(trace: Trace, event: SamplerEpoch, sampler: Sampler) -> bool:
    """set_epoch was called on this sampler, or on one that is reached some other way."""
    called = trace.sampler(event.sampler)
    return called is None or called is sampler or called.assumed is True


def _trains(trace: Trace, epoch: Epoch) -> bool:
    """A backward runs in this pass over the data."""
    for event in trace.after(epoch):
        match event:
            case Backward():
                return True
            case Epoch(loader=loader) | EpochEnd(loader=loader) if loader == epoch.loader:
                return False
    return False
