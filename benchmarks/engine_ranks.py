"""What several ranks cost the host: the plan of a window, and adding up token counts while backward computes.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_ranks.py             # prints
    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_ranks.py --write     # and writes its section of RESULTS.md

The plan is CPU time. Token counts: two ranks (gloo, on this machine) with a model whose backward takes some milliseconds; how long an update waits for the sum that was
begun before backward, and how long the same all-reduce takes when nothing overlaps it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

import torch
import torch.distributed as dist
from launch import ended, forked
from results import machine, write_section
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fallline
from fallline.engine.replicas import Replicas
from fallline.engine.turns import plan

SIZES = (2, 64, 1024, 16384)


def plan_microseconds(ranks: int, windows: int = 400) -> float:
    """CPU time of one window, without the first, which sorts the ranks."""
    rows = [(4 * windows + rank % 7, 0) for rank in range(ranks)]
    planned = plan(rows, lambda: 4, 0)
    next(planned)
    best = []
    for _ in range(8):
        began = time.process_time()
        for _ in range(windows // 10):
            next(planned)
        best.append((time.process_time() - began) / (windows // 10) * 1e6)
    return min(best)


def run(names: list[str], rank: int, world: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
    stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    waits: list[float] = []
    finish = Replicas.finish_sum

    def timed(self: Replicas, total: Any, work: Any) -> Any:
        began = time.perf_counter()
        result = finish(self, total, work)
        waits.append(time.perf_counter() - began)
        return result

    Replicas.finish_sum = timed  # type: ignore[method-assign]
    alone: list[float] = []
    for _ in range(60):
        inputs = torch.randn(256, 256)
        with stepper.micro_batch() as micro:
            micro.backward(model(inputs).square().sum(), weight=inputs.numel())
        dist.barrier()
        count = torch.tensor([1.0], dtype=torch.float64)
        began = time.perf_counter()
        dist.all_reduce(count)
        alone.append(time.perf_counter() - began)
    if rank == 0:
        found = [1e6 * statistics.median(values[10:]) for values in (waits, alone)]
        (folder / "found.json").write_text(json.dumps(found))


def token_microseconds() -> list[float]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as name:
        here: Any = sys.modules[__name__]
        folder = Path(name)
        if not ended([forked(here, [], rank, 2, folder) for rank in range(2)]):
            raise SystemExit((folder / "rank-0.log").read_text())
        found: list[float] = json.loads((folder / "found.json").read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the section into RESULTS.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plans = ", ".join(f"{ranks:,} ranks {plan_microseconds(ranks):.1f}" for ranks in SIZES)
    overlapped, alone = token_microseconds()
    text = (
        f"`python benchmarks/engine_ranks.py`, {machine()}, torch {torch.__version__}\n\n"
        f"The plan of one window, microseconds of CPU: {plans}.\n\n"
        f"Token counts of two ranks: the update waits {overlapped:.0f} µs for the sum that travelled while backward computed; the same all-reduce takes {alone:.0f} µs when nothing overlaps it."
    )
    print(text)
    if options.write:
        write_section("what several ranks cost the host", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
