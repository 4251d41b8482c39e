"""Whether every rank reaches every other, how fast all of them add up, and which of them is slower at the same work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from fallline.instruments.frame import Progress
from fallline.instruments.ranks.machine import Machine
from fallline.instruments.ranks.meeting import Meeting

__all__ = ["AllReduce", "Talk", "talk"]

SIZES = (4 << 10, 256 << 10, 4 << 20, 25 << 20, 100 << 20)  # 25 MiB is DDP's bucket
_ALL_PAIRS = 8  # ranks; above, only neighbours
_ROUNDS = 12


@dataclass
class AllReduce:
    """One size, with the time of the slowest rank."""

    size: int  # bytes
    seconds: float
    bandwidth: float  # bytes per second that come out of it
    bus_bandwidth: (
        float  # bytes per second over the slowest link: comparable between numbers of ranks
    )


@dataclass
class Talk:
    """What was measured between the ranks."""

    backend: str = ""
    pings: list[dict[str, Any]] = field(default_factory=list)  # {a, b, seconds}: there and back
    all_reduce: list[AllReduce] = field(default_factory=list)
    work: list[float] = field(default_factory=list)  # seconds for the same work, by rank


def talk(meeting: Meeting, machines: list[Machine], found: Talk, progress: Progress | None) -> None:
    """Measure into `found`, so that what is there stays when a rank falls silent."""
    on_gpu = all(m.device != "cpu" for m in machines) and _distinct(machines)
    device = torch.device(machines[meeting.rank].device if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    found.backend = "nccl" if on_gpu and dist.is_nccl_available() else "gloo"
    there_already = dist.is_initialized()
    if there_already:
        found.backend = dist.get_backend()
    else:
        _make_group(meeting, found.backend)
    done = 0

    def step(note: str) -> None:
        nonlocal done
        done += 1
        if progress is not None and meeting.rank == 0:
            progress.advance(done, note)

    for a, b in _pairs(meeting.world):
        work = partial(_ping, a, b, device)
        seconds = meeting.together(f"rank {a} talking to rank {b}", work)
        told = meeting.gather(f"ping {a} {b}", seconds)[a]
        found.pings.append({"a": a, "b": b, "seconds": told})
        step(f"rank {a} talks to rank {b}")
    for size in SIZES:
        work = partial(_all_reduce, size, device)
        seconds = meeting.together(f"an all-reduce of {size} bytes", work)
        slowest = max(meeting.gather(f"all-reduce {size}", seconds))
        share = 2 * (meeting.world - 1) / meeting.world
        found.all_reduce.append(AllReduce(size, slowest, size / slowest, share * size / slowest))
        step(f"all-reduce of {size} bytes")
    own = meeting.together("the same work on every rank", lambda: _work(device))
    found.work = meeting.gather("work", own)
    if not there_already:
        meeting.together("leaving the process group", dist.destroy_process_group)


def _make_group(meeting: Meeting, backend: str) -> None:
    """In a corner of the store of its own, so that the script can make its own afterwards."""
    limit = timedelta(seconds=meeting.seconds)
    store = PrefixStore("group", meeting.store)
    meeting.together(
        "making the process group",
        lambda: dist.init_process_group(
            backend, store=store, rank=meeting.rank, world_size=meeting.world, timeout=limit
        ),
    )


def _distinct(machines: list[Machine]) -> bool:
    """NCCL needs a GPU for each rank."""
    places = [(m.host, m.device) for m in machines]
    return len(set(places)) == len(places)


def _pairs(world: int) -> list[tuple[int, int]]:
    if world <= _ALL_PAIRS:
        return list(combinations(range(world), 2))
    return [(rank, rank + 1) for rank in range(world - 1)]


def _ping(a: int, b: int, device: torch.device) -> float:
    """There and back, the quickest of a few."""
    rank = dist.get_rank()
    if rank not in (a, b):
        return 0.0
    message = torch.zeros(1, device=device)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        if rank == a:
            dist.send(message, b)
            dist.recv(message, b)
        else:
            dist.recv(message, a)
            dist.send(message, a)
        _wait(device)
        best = min(best, time.perf_counter() - begun)
    return best


def _all_reduce(size: int, device: torch.device) -> float:
    """The median of as many as fit into half a second."""
    values = torch.zeros(size // 4, device=device)
    first = torch.tensor([_once(values, device)], dtype=torch.float64, device=device)
    _once(first, device)  # the sum of all: everyone takes the same number of turns
    turns = int(min(30, max(3, 0.5 / max(float(first) / dist.get_world_size(), 1e-6))))
    return median(_once(values, device) for _ in range(turns))


def _once(values: torch.Tensor, device: torch.device) -> float:
    begun = time.perf_counter()
    dist.all_reduce(values)
    _wait(device)
    return time.perf_counter() - begun


def _work(device: torch.device) -> float:
    """The same matrix products everywhere, after a common start."""
    size = 2048 if device.type == "cuda" else 256
    matrix = torch.full((size, size), 1.0 / size, device=device)
    rounds = []
    for _ in range(_ROUNDS):
        dist.barrier()
        begun = time.perf_counter()
        result = matrix
        for _ in range(8):
            result = result @ matrix
        _wait(device)
        rounds.append(time.perf_counter() - begun)
    return median(rounds[2:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
