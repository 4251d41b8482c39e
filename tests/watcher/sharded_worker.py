"""One rank of `test_sharded`: small loops with one order fault each, on models that are wrapped in different ways.

Each loop runs bare and then watched, and prints what was found where and whether the losses are the same to the last bit.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hardware_worker import cases
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fallline

UPDATES = 8
LIMIT = 0.5


def right(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for first, second in batches:
        optimizer.zero_grad()
        for x, last in ((first, False), (second, True)):
            sync(model, last)
            loss = loss_of(model, x) / 2
            loss.backward()
            seen.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()


def clip_early(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for first, second in batches:
        optimizer.zero_grad()
        for x in (first, second):
            loss = loss_of(model, x) / 2
            if x is second:
                nn.utils.clip_grad_norm_(model.parameters(), LIMIT)  # FL102
            loss.backward()
            seen.append(loss.item())
        optimizer.step()


def clip_late(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        seen.append(loss.item())
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), LIMIT)  # FL101


def never_cleared(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        loss = loss_of(model, x)
        loss.backward()  # FL106
        seen.append(loss.item())
        optimizer.step()


def wiped(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for number, (x, _) in enumerate(batches):
        loss = loss_of(model, x) / 2
        optimizer.zero_grad()  # FL105
        loss.backward()
        seen.append(loss.item())
        if (number + 1) % 2 == 0:
            optimizer.step()


def undivided(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for first, second in batches:
        optimizer.zero_grad()
        for x in (first, second):
            loss = loss_of(model, x)
            loss.backward()  # FL104
            seen.append(loss.item())
        optimizer.step()


def always_synced(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for first, second in batches:
        optimizer.zero_grad()
        for x in (first, second):
            loss = loss_of(model, x) / 2
            loss.backward()  # FL301
            seen.append(loss.item())
        optimizer.step()


def never_synced(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        optimizer.zero_grad()
        sync(model, False)
        loss = loss_of(model, x)
        loss.backward()
        seen.append(loss.item())
        optimizer.step()  # FL310


def one_shard_is_nan(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for number, (x, _) in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()  # NaN
        seen.append(loss.item())
        if number == 3 and dist.get_rank() == 1:
            gradient = next(model.parameters()).grad
            getattr(gradient, "_local_tensor", gradient).view(-1)[0] = float("nan")
        optimizer.step()


def clip_some(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        seen.append(loss.item())
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and layer.out_features > 1:
                nn.utils.clip_grad_norm_(layer.parameters(), LIMIT)  # FL114
        optimizer.step()


def clip_own_shards(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        seen.append(loss.item())
        parts = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters()]  # FL308
        norm = torch.stack([part.norm() for part in parts]).norm()
        for part in parts:
            part.mul_((LIMIT / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()


def clip_over_ranks(model: Any, optimizer: Any, batches: Any, seen: list[float]) -> None:
    for x, _ in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        seen.append(loss.item())
        parts = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters()]
        squares = torch.stack([part.square().sum() for part in parts]).sum()
        dist.all_reduce(squares)
        for part in parts:
            part.mul_((LIMIT / (squares.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()


def sync(model: Any, on: bool) -> None:
    inner = getattr(model, "_orig_mod", model)
    if hasattr(inner, "set_requires_gradient_sync"):
        inner.set_requires_gradient_sync(on)
    elif hasattr(inner, "require_backward_grad_sync"):
        inner.require_backward_grad_sync = on


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x[:, :1])


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    world = dist.get_world_size()
    if kind in ("fsdp2", "compiled"):
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if kind == "compiled":
            for layer in model:
                layer.compile(backend="eager")
        return model
    if kind == "tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["dp"])
    return nn.parallel.DistributedDataParallel(model)


def train(kind: str, loop: Any, folder: Path | None) -> tuple[list[float], list[Any], str]:
    model = made(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1 if kind == "tp" else dist.get_rank())
    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(UPDATES)]
    seen: list[float] = []
    if folder is None:
        loop(model, optimizer, batches, seen)
        return seen, [], ""
    guard = "skip" if loop is one_shard_is_nan else "off"
    watching = fallline.watch(model, optimizer, out=folder, guard=guard)
    loop(model, optimizer, batches, seen)
    dist.barrier()  # both have written
    found = watching.stop()
    said = " ".join(f.message for f in found)
    return (
        seen,
        [[f.code, f.at.line, f.evidence.get("step"), f.evidence.get("rank")] for f in found],
        said,
    )


LOOPS = (
    right, clip_early, clip_late, never_cleared, wiped, undivided, always_synced, never_synced, one_shard_is_nan, clip_some, clip_own_shards,
    clip_over_ranks,
)  # fmt: skip


def main(kinds: list[str], out: Path) -> None:
    dist.init_process_group("gloo")
    result: dict[str, Any] = {}
    if "hardware" in kinds:
        kinds.remove("hardware")
        result["hardware"] = cases(out)
    for kind in kinds:
        for loop in LOOPS:
            bare, *_ = train(kind, loop, None)
            seen, found, said = train(kind, loop, out / f"{kind}-{loop.__name__}")
            finite = all(map(math.isfinite, seen))
            # a guard that keeps a NaN out changes what comes after it
            same = bare[:4] == seen[:4] if loop is one_shard_is_nan else bare == seen
            result[f"{kind} {loop.__name__}"] = {
                "found": found,
                "same": same,
                "finite": finite,
                "said": said,
            }
    if dist.get_rank() == 0:
        (out / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[2:], Path(sys.argv[1]))
