"""Saves on several ranks: what goes wrong on one of them is said on all, and nothing half written is visible."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from rank_reference import refused
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fallline
from fallline.engine import agree


@contextmanager
def on_a_disk_of_its_own(folder: Path, rank: int) -> Iterator[None]:
    """The same path is a different place on each rank, as on nodes with their own disks."""
    before, mine = Path.cwd(), folder / f"node{rank}"
    mine.mkdir(parents=True, exist_ok=True)
    os.chdir(mine)
    try:
        yield
    finally:
        dist.barrier()
        os.chdir(before)


def saving(rank: int, world: int, folder: Path) -> None:
    """All ranks hear of what goes wrong on one: saves by rank 0 alone, folders of one node, a full disk, in the background too."""
    ddp = DistributedDataParallel(nn.Linear(400, 300))
    stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    # Under `if rank == 0`, that rank is told before torch gives up.
    if rank == 0:
        patience, agree._PATIENCE = agree._PATIENCE, 2.0
        refused(
            "by 1 of 2 ranks", lambda: fallline.save_checkpoint(folder / "alone", stepper=stepper)
        )
        agree._PATIENCE = patience
    dist.barrier()
    # A disk that is full on the rank that writes; and the save after it works.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for wait in (True, False):
        where = folder / f"full-{wait}"
        if rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        if wait:
            refused(
                "rank 0: cannot write",
                lambda where=where: fallline.save_checkpoint(where, stepper=stepper),
            )
        else:
            fallline.save_checkpoint(where, stepper=stepper, wait=False)
            refused("rank 0: the checkpoint", fallline.wait_for_checkpoint)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        dist.barrier()
        assert not list(where.iterdir())
        path = fallline.save_checkpoint(where, stepper=stepper, wait=wait)
        fallline.wait_for_checkpoint()
        dist.barrier()
        assert path.exists()
    # Ranks that save to different places.
    refused(
        "save to different folders",
        lambda: fallline.save_checkpoint(folder / str(rank), stepper=stepper),
    )
    with on_a_disk_of_its_own(folder, rank):
        with warnings.catch_warnings(record=True) as said:
            path = fallline.save_checkpoint("saved", stepper=stepper)
        assert path.exists() == (rank == 0) == any("does not see" in str(w.message) for w in said)
    # A folder that only rank 0 sees.
    mine = folder / ("full-True" if rank == 0 else "nowhere")
    refused(
        "rank 0 sees step-00000000.pt; rank 1 sees no checkpoint",
        lambda: fallline.load_checkpoint(mine, stepper=stepper),
    )


def sharded_saves(rank, world, folder, run) -> None:
    """In the background, on a full disk, damaged, or of another model: the same on all ranks, and nothing half visible."""
    stepper = run(folder / "background", 2)
    wanted = [p.to_local().clone() for p in stepper.models[0].parameters()]
    path = fallline.save_checkpoint(folder / "later", stepper=stepper, wait=False)
    with stepper.micro_batch(last=True) as micro:
        micro.backward(stepper.models[0](torch.ones(2, 3, dtype=torch.float64)).sum())
    assert fallline.wait_for_checkpoint() == path
    assert not torch.equal(wanted[0], next(stepper.models[0].parameters()).to_local())
    fallline.load_checkpoint(folder / "later", stepper=stepper)
    for want, parameter in zip(wanted, stepper.models[0].parameters(), strict=True):
        assert torch.equal(want, parameter.to_local())
    # The disk of one rank is full.
    big = fully_shard(nn.Linear(400, 300))
    optimizer = torch.optim.SGD(big.parameters(), lr=0.1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for wait in (True, False):
        if rank == world - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))

        def attempt(wait=wait):
            parts = {"model": big, "optimizer": optimizer}
            fallline.save_checkpoint(folder / "full", **parts, step=1, wait=wait)
            fallline.wait_for_checkpoint()

        refused("cannot write", attempt)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        dist.barrier()
        assert not list((folder / "full").iterdir())
    # Each rank has a disk of its own, so its part would be missing in what rank 0 sees.
    with on_a_disk_of_its_own(folder, rank):
        refused(
            "rank 1 does not see what rank 0 writes",
            lambda: fallline.save_checkpoint("saved", model=big, step=1),
        )
        assert not list(Path().glob("saved/*"))
    # A flipped bit in one rank's part.
    part = path / f"__{world - 1}_0.distcp"
    if rank == 0:
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 4
        part.write_bytes(content)
    dist.barrier()
    refused("is damaged", lambda: fallline.load_checkpoint(path, stepper=stepper))
