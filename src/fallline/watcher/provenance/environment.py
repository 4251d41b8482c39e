"""What a run runs on: machine, devices, versions of what it imported, and torch's switches."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

__all__ = ["surroundings", "switches"]

# Variables that change what torch computes, or in which order
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "WORLD_SIZE",
)  # fmt: skip
_MOST = 400


def switches() -> dict[str, Any]:
    """Torch's switches as the calling thread sees them: some are a thread's own."""
    backends = torch.backends
    asked: dict[str, Callable[[], Any]] = {
        "threads": torch.get_num_threads,
        "default dtype": lambda: str(torch.get_default_dtype())[6:],
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "float32 matmul precision": lambda: _precision(backends.cuda.matmul, torch.get_float32_matmul_precision),
        "float32 convolution precision": lambda: _convolutions(backends.cudnn),
        "cudnn.benchmark": lambda: backends.cudnn.benchmark,
        "cudnn.deterministic": lambda: backends.cudnn.deterministic,
        "mkldnn": lambda: backends.mkldnn.enabled,
        "flash attention": backends.cuda.flash_sdp_enabled,
        "seed": lambda: str(torch.initial_seed()),
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        with suppress(Exception):  # a switch that this version does not have
            found[name] = ask()
    return found


def _precision(matmul: Any, otherwise: Callable[[], str]) -> str:
    """Newer versions warn of the older question once the newer one was answered."""
    for place in (matmul, torch.backends):
        known = getattr(place, "fp32_precision", None)
        if known not in (None, "none"):
            return str(known)
    return otherwise()


def _convolutions(cudnn: Any) -> str:
    """In TF32 unless somebody turns that off."""
    known = getattr(getattr(cudnn, "conv", None), "fp32_precision", None)
    return str(known) if known not in (None, "none") else "tf32" if cudnn.allow_tf32 else "ieee"


def surroundings() -> dict[str, Any]:
    """The machine, the versions and the variables. For a background thread."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "torch": torch.__version__,
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["device"] = torch.cuda.get_device_name()
        found["devices"] = torch.cuda.device_count()
        with suppress(Exception):
            found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    found |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return found | {f"{name} (version)": version for name, version in _versions().items()}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _versions() -> dict[str, str]:
    """Of the packages that are imported, as they say it themselves. A lazy one must not wake up for it."""
    found = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in ("torch", "fallline"):
            continue
        names = getattr(module, "__dict__", {})
        version, aside = names.get("__version__"), names.get("_objects")
        if version is None and isinstance(aside, dict):  # a lazy module, as transformers is one
            version = aside.get("__version__")
        if isinstance(version, str):
            found[name] = version
    return dict(sorted(found.items())[:_MOST])
