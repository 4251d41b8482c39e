"""DDP and FSDP2 over gloo, with a switch for what is wrong with it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from equal_loops.plain import Tokens, net, pictures, ragged, sentences
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

K = 2


def _begin() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1)))  # fmt: skip


def _wrapped(model: torch.nn.Module, fault: str) -> Any:
    if "fsdp" not in fault:
        return DistributedDataParallel(model)
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)


def classify(fault: str = "") -> None:
    """A classifier, one update from two micro-batches on every rank."""
    _begin()
    torch.manual_seed(0)
    model = _wrapped(net(), fault)
    data = pictures(48)
    sampler = None if fault == "no sampler" else DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ranks = dist.get_world_size()
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % K == 0
        quiet = model.no_sync() if hasattr(model, "no_sync") and not last and fault != "every sync" else nullcontext()  # fmt: skip
        if fault == "never synchronised":
            quiet = model.no_sync()
        with quiet:
            loss = F.cross_entropy(model(x), y) / (1 if "undivided" in fault else K)
            if "by ranks twice" in fault:
                loss = loss / ranks
            if fault == "summed over ranks":
                loss = loss * ranks
            loss.backward()
        if last:
            if "clip" in fault:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def language(fault: str = "") -> None:
    """Unequal numbers of targets on the ranks."""
    _begin()
    torch.manual_seed(0)
    model = _wrapped(Tokens(), fault)
    data = sentences(32)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=1), collate_fn=ragged)  # type: ignore[arg-type]  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, labels in loader:
        logits = model(ids).flatten(0, 1)
        if fault == "mean of ranks":
            loss = F.cross_entropy(logits, labels.flatten())
        else:
            total = (labels != -100).sum()
            dist.all_reduce(total)
            loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / total
            loss = loss * dist.get_world_size()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


LOOPS = {"classify": classify, "language": language}

if __name__ == "__main__":
    LOOPS[sys.argv[1]](" ".join(sys.argv[2:]))
