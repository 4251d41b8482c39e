"""FL308: torch's clip_grad_norm_ on FSDP1 shards."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Clip, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule

_FSDP = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
"""


class ClipLocalShard(Rule):
    code = "FL308"
    name = "clip-local-shard"
    severity = Severity.ERROR
    what = """\
`torch.nn.utils.clip_grad_norm_` is called on the parameters of an FSDP1 model (`FullyShardedDataParallel`)."""
    why = """\
Each rank holds only its own shard of the gradients, so each computes a different norm and clips by a different factor: the parts of one gradient no longer fit together.

FSDP2 (`fully_shard`) and DTensors are fine: there torch's function computes the norm over all ranks. So is `NO_SHARD`, where every rank holds everything."""
    instead = """\
Use the method of the wrapped model.

```python
model.clip_grad_norm_(1.0)
```"""
    references = (
        "https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for clip in trace.of(Clip):
            if clip.local_shards is True:
                yield self.finding(
                    clip,
                    "torch's clip_grad_norm_ sees only this rank's shards of the FSDP model, so each rank computes a different norm. Use the model's own method: "
                    "model.clip_grad_norm_(max_norm).",
                )

    wrong = (
        _FSDP
        + """\
model = FullyShardedDataParallel(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL308
    optimizer.step()
""",
    )
    right = (
        _FSDP
        + """\
model = FullyShardedDataParallel(torch.nn.Linear(8, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
""",
        # nothing is sharded
        _FSDP
        + """\
model = FullyShardedDataParallel(
    torch.nn.Linear(8, 2), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device("cpu")
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
        # DDP: every rank has the whole gradient, averaged
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    )
