"""What one rank runs on, and how a job is started on this machine."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Machine", "here", "torchrun_line"]

_SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
    "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "GLOO_SOCKET_IFNAME", "TORCH_DISTRIBUTED_DEBUG", "PYTHONHASHSEED",
)  # fmt: skip


@dataclass
class Machine:
    """One rank and what is under it."""

    rank: int
    local_rank: int
    host: str
    pid: int
    python: str
    torch: str
    cuda: str | None  # that torch was built for
    driver: str | None
    nccl: str | None
    backends: list[str]
    device: str  # that this rank is to use
    devices: list[str]  # all that it can see
    cores: int
    threads: int
    settings: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def here() -> Machine:
    """This process. The device is looked at, not used: nothing is allocated on it."""
    count = torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    names = [torch.cuda.get_device_name(i) for i in range(count)]
    backends = [
        name
        for name, there in (
            ("gloo", dist.is_gloo_available()),
            ("nccl", dist.is_nccl_available()),
            ("mpi", dist.is_mpi_available()),
        )
        if there
    ]
    return Machine(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=local,
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=_driver() if count else None,
        nccl=_nccl() if count and "nccl" in backends else None,
        backends=backends,
        device=f"cuda:{local}" if local < count else "cpu",
        devices=names,
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        settings={name: os.environ[name] for name in _SETTINGS if name in os.environ},
    )


def _nccl() -> str:
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        told = subprocess.run(
            [program, "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return told.split("\n")[0].strip() or None


def torchrun_line(machine: Machine, script: str = "train.py") -> str:
    """How to start one rank for each GPU of this machine; on a CPU two, each with its share of the cores."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES") or "1")
    ranks = len(machine.devices) or min(2, machine.cores)
    before = "" if machine.devices else f"OMP_NUM_THREADS={max(1, machine.cores // ranks)} "
    where = "--standalone"
    if nodes > 1:
        first = os.environ.get("MASTER_ADDR") or "FIRST_HOST"
        where = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint {shlex.quote(first)}:29500 --rdzv-id job"
    return f"{before}torchrun {where} --nproc-per-node {ranks} {script}"
