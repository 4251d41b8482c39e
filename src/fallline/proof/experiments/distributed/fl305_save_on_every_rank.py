"""FL305: both ranks save to one path; the first to finish reads its checkpoint while the second is half way through."""

from __future__ import annotations

import io
import os
import tempfile
from functools import partial

import torch
import torch.distributed as dist

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import network
from fallline.proof.ranks import on_ranks


@experiment(
    "FL305",
    claim="Where every rank saves to one path, a rank that is done can find the file cut short by one that is still writing.",
)
def save_on_every_rank() -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        wrong = on_ranks(partial(_save_everywhere, path=os.path.join(folder, "wrong.pt")))
        right = on_ranks(partial(_save_once, path=os.path.join(folder, "right.pt")))
    return Measured(
        sides={
            "wrong": {
                "bytes written": sum(size for size, _ in wrong),
                "the file when rank 0 is done": wrong[0][1],
            },
            "right": {
                "bytes written": sum(size for size, _ in right),
                "the file when rank 0 is done": right[0][1],
            },
        },
        conclusion=f"rank 0 had saved and found its file {wrong[0][1]}, because rank 1 was writing the same path again; saved by rank 0 alone it was "
        f"{right[0][1]} on both ranks, with about half the bytes written",
        holds={
            "saved everywhere, the finished file is broken again": wrong[0][1] != "complete",
            "saved once, both ranks can load it": {told for _, told in right} == {"complete"},
            "saved everywhere, it is written twice": sum(s for s, _ in wrong)
            > 1.8 * sum(s for s, _ in right),
        },
    )


class _Paused(io.RawIOBase):
    """A file on a slow disk: half way through, the other rank comes and reads."""

    def __init__(self, path: str, size: int) -> None:
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115  closed below
        self.left = size // 2
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        block = bytes(data)  # type: ignore[call-overload]  # torch writes memory and bytes
        self.file.write(block)
        self.written += len(block)
        if self.left > 0 >= self.left - len(block):
            dist.barrier()  # rank 0 reads now ...
            dist.barrier()  # ... and has read
        self.left -= len(block)
        return len(block)

    def close(self) -> None:
        self.file.close()
        super().close()


def _save_everywhere(rank: int, world: int, *, path: str) -> tuple[int, str]:
    """The bytes this rank wrote, and what it found in the file when it was done."""
    state = network().state_dict()
    if rank == 0:
        torch.save(state, path)
        size = os.path.getsize(path)
        dist.barrier()  # rank 1 is later, as one rank always is
        dist.barrier()
        told = _loads(path)
        dist.barrier()
        return size, told
    dist.barrier()
    with _Paused(path, os.path.getsize(path)) as slow:
        torch.save(state, slow)  # type: ignore[arg-type]  # it asks for write() alone
    return slow.written, _loads(path)


def _save_once(rank: int, world: int, *, path: str) -> tuple[int, str]:
    state = network().state_dict()
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    return os.path.getsize(path) if rank == 0 else 0, _loads(path)


def _loads(path: str) -> str:
    try:
        torch.load(path)
    except Exception:
        return "unreadable"
    return "complete"
