"""FL308: gradients clipped by a norm of this rank's shards alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fallline.events import Clip, Trace
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.show.numbers import number

_FSDP = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
"""


_Look = tuple[Location | None, dict[str, float]]  # where, and the factor of each parameter


class ClipLocalShard(Rule):
    code = "FL308"
    name = "clip-local-shard"
    severity = Severity.ERROR
    what = """\
Gradients are clipped by a norm that sees only this rank's shards: `torch.nn.utils.clip_grad_norm_` on the parameters of an FSDP1 model (`FullyShardedDataParallel`), or a clip written by hand over `p.grad.to_local()`."""
    why = """\
Each rank holds only its own shard of the gradients, so each computes a different norm and clips by a different factor: the parts of one gradient no longer fit together.

With FSDP2 (`fully_shard`) and DTensors, torch's own function computes the norm over all ranks and is fine. So is `NO_SHARD`, where every rank holds everything. A clip written by hand over the local tensors of FSDP2 or tensor parallelism is found in a run (`fallline run`), by the factors that each rank's shards were multiplied by in the first updates."""
    instead = """\
Use the method of the FSDP1 model, and torch's function with FSDP2.

```python
model.clip_grad_norm_(1.0)                                # FSDP1
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # FSDP2
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

    apart = 1.01  # the largest factor over the smallest
    least_updates = 2

    def check_series(self, run: Any) -> Iterator[Finding]:
        by_rank = {rank.number: _looks(rank.meta.get("shards")) for rank in run.ranks}
        updates = sorted({update for looks in by_rank.values() for update in looks})
        seen = [(update, found) for update in updates if (found := self._apart(by_rank, update))]
        if len(seen) < self.least_updates:
            return
        update, (name, factors) = seen[0]
        places = [at for looks in by_rank.values() if (at := looks.get(update, (None, {}))[0])]
        low, high = min(factors, key=lambda r: factors[r]), max(factors, key=lambda r: factors[r])
        yield self.finding(
            places[0] if places else Location("", 1),
            f"Each rank multiplies its own shards of the gradient by a different factor: {number(factors[low])} on rank {low}, {number(factors[high])} on "
            f"rank {high} (update {update}, {name}). A norm of local tensors is only this rank's part of the norm. Use "
            "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), which computes it over all ranks.",
            parameter=name,
            update=update,
            updates=len(seen),
            factors={str(rank): factor for rank, factor in list(factors.items())[:64]},
            threshold=self.apart,
        )

    def _apart(
        self, by_rank: Mapping[int, Mapping[int, _Look]], update: int
    ) -> tuple[str, dict[int, float]] | None:
        """The first parameter whose shards were multiplied by different factors in this update, with the factors."""
        here = {rank: looks[update][1] for rank, looks in by_rank.items() if update in looks}
        for name in dict.fromkeys(name for factors in here.values() for name in factors):
            found = {rank: factors[name] for rank, factors in here.items() if name in factors}
            if max(found.values()) > self.apart * min(found.values()):
                return name, found
        return None

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


def _looks(described: Any) -> dict[int, _Look]:
    """Update → what the rank's shards were multiplied by. Whatever is not that is left out."""
    found: dict[int, _Look] = {}
    for row in described if isinstance(described, list) else ():
        match row:
            case {"update": int(update), "factors": dict(factors), "at": at}:
                known = {n: float(f) for n, f in factors.items() if _is_factor(f)}
                found[update] = (_place(at), known)
    return found


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _place(at: Any) -> Location | None:
    match at:
        case [str(path), int(line), str(function)] if line > 0:
            return Location(path, line, function=function)
    return None
