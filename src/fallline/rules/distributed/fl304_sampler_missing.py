"""FL304: DDP with a plain shuffled loader: every rank reads all the data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.ranks import (
    called_functions,
    is_distributed,
    mentions_rank,
    of_one_rank,
    owned_by_framework,
)
from fallline.flow.samplers import never_given
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

# Any of these says that somebody has thought of who reads what.
_SHARED_OUT = re.compile(
    r"Sampler|split_dataset_by_node|\.shard\(|num_shards|num_replicas|IterableDataset|wds\.|webdataset"
    r"|seed\w*\s*\+\s*[\w.]*rank|rank\w*\s*\+\s*[\w.]*seed|manual_seed\([^)]*rank|rank\w*\s*::|(%|::)\s*[\w.]*world_size"
)
_TRAINS = re.compile(r"backward\(|train_step|training_step|\.fit\(")
_NOT_TRAINING = re.compile(r"val|test|eval|dev|infer", re.IGNORECASE)
_BRANCH = re.compile(r"dist|ddp|world|rank|parallel|gpu", re.IGNORECASE)
_LOADER = "torch.utils.data.DataLoader"


class SamplerMissing(Rule):
    code = "FL304"
    name = "sampler-missing"
    severity = Severity.ERROR
    what = """\
The model is wrapped in DDP and the training data comes from a `DataLoader` with `shuffle=True` and no `DistributedSampler`, or the sampler was made and never given to it."""
    why = """\
Every rank goes through all of the data, so an epoch is as long on eight GPUs as on one; with the same seed on every rank they even see the same batches, and seven of eight gradients are copies."""
    instead = """\
Give each rank its part.

```python
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)      # not shuffle=True
for epoch in range(epochs):
    sampler.set_epoch(epoch)
```"""
    tokens = (b"DistributedDataParallel", b"DistributedSampler")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._plain(module)
        for name, loader in never_given(module):
            if owned_by_framework(module) or of_one_rank(module):
                return
            yield self.finding(
                module.location(loader),
                f"`{name}` is made for this data and never given to its loader, so every rank goes over all of it. Pass `sampler={name}`, without shuffle=True.",
                severity=Severity.INFO if _is_held_out(module, loader) else None,
            )

    def _plain(self, module: Module) -> Iterator[Finding]:
        """A loader that shuffles, in a file where nobody has thought of who reads what."""
        wrapped = any(True for _ in module.calls("torch.nn.parallel.DistributedDataParallel"))
        if not wrapped or not is_distributed(module) or owned_by_framework(module):
            return
        homes = {id(module): (module, [*module.calls(_LOADER)])}
        reached = {id(module): module}
        for call in module.all(ast.Call):
            for home, function in called_functions(module, call):
                reached[id(home)] = home
                inside = [c for c in below(function, ast.Call) if home.resolve(c.func) == _LOADER]
                if home is not module and inside:
                    homes.setdefault(id(home), (home, []))[1].extend(inside)
        if any(_SHARED_OUT.search(_code(home)) for home, _ in homes.values()):
            return
        if not any(_TRAINS.search(_code(home)) for home in reached.values()):
            return  # it looks at the data, or at what a model makes of it: every rank may need all of it
        for home, loaders in homes.values():
            for loader in dict.fromkeys(loaders):
                if (
                    _shuffles(home, loader)
                    and not _is_other(home, loader)
                    and not _split_by_rank(home, loader)
                ):
                    yield self.finding(
                        home.location(loader),
                        "The model is in DDP but this loader shuffles all of the data on every rank, so an epoch sees every sample once per rank. Give it a DistributedSampler instead of "
                        "shuffle=True, and call its set_epoch.",
                    )

    wrong = (
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)  # FL304
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
        optimizer.step()
""",
        """\
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def loaders(data, held_out):
    train = DataLoader(data, 16, True, num_workers=4, pin_memory=True)  # FL304
    val = DataLoader(held_out, 16, num_workers=4, pin_memory=True)
    return train, val


def main(data, held_out, net):
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    model = torch.nn.parallel.DistributedDataParallel(net.to(device), device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters())
    train, val = loaders(data, held_out)
    for inputs, targets in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        # made and never given
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
sampler = DistributedSampler(data) if dist.is_initialized() else None
loader = DataLoader(data, batch_size=16, shuffle=sampler is None)  # FL304
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
        optimizer.step()
""",
    )
    right = (
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda())
data = TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
""",
        # each rank shuffles with a seed of its own
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.manual_seed(1337 + rank)
model = DDP(torch.nn.Linear(8, 2).cuda())
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs.cuda()).mean().backward()
    optimizer.step()
""",
        # only the validation data is shuffled
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda())
val_loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(16, 8).cuda()).mean().backward()
optimizer.step()
""",
        # nothing is trained: every rank looks at all features
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda()).eval()
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=64, shuffle=True)
with torch.no_grad():
    features = model(next(iter(loader))[0].cuda())
""",
        # one process
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.DataParallel(torch.nn.Linear(8, 2))
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (inputs,) in loader:
    optimizer.zero_grad()
    model(inputs).mean().backward()
    optimizer.step()
""",
    )


def _shuffles(module: Module, call: ast.Call) -> bool:
    if (
        module.has_star(call)
        or module.argument(call, 3, "sampler")
        or module.argument(call, 4, "batch_sampler")
    ):
        return False
    return module.constant(module.argument(call, 2, "shuffle")) is True


def _is_other(module: Module, call: ast.Call) -> bool:
    """Not the training data, or a branch for one process."""
    if _is_held_out(module, call):
        return True
    tests = [up.test for up in module.parents(call) if isinstance(up, ast.If | ast.IfExp)]
    return any(_BRANCH.search(module.segment(test)) for test in tests)


def _is_held_out(module: Module, call: ast.Call) -> bool:
    """`val_loader = DataLoader(...)`, or a function that is about held-out data."""
    statement, function = module.statement(call), module.function(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [*map(module.segment, targets), function.name if function is not None else ""]
    return any(_NOT_TRAINING.search(name) for name in names)


def _split_by_rank(module: Module, call: ast.Call) -> bool:
    """The data set that it is given was made for this rank: `partition.use(dist.get_rank())`, `Subset(data, mine[rank])`."""
    data = module.argument(call, 0, "dataset")
    return data is not None and mentions_rank(module, data)


def _code(module: Module) -> str:
    """The text without its comments."""
    return "\n".join(line.partition("#")[0] for line in module.source.lines)
