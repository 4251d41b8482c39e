"""Every source of randomness, as plain data that `torch.load(weights_only=True)` accepts."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

__all__ = ["capture", "capture_host", "restore", "seed_numpy"]


def capture_host() -> dict[str, Any]:
    """Python, numpy (where it is in use) and torch on the CPU: what a loader and its samplers draw from."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state["numpy"] = {
            "name": str(name),
            "keys": torch.from_numpy(keys.astype("int64")),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    return state


def capture() -> dict[str, Any]:
    """`capture_host`, and the generator of every device that is in use."""
    state = capture_host()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Put back what is in `state`; sources that it does not mention are left alone."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    if "numpy" in state:
        import numpy

        saved = state["numpy"]
        keys = saved["keys"].cpu().numpy().astype("uint32")
        numpy.random.set_state(
            (saved["name"], keys, saved["position"], saved["has_gauss"], saved["cached"])
        )
    if "cuda" in state and torch.cuda.is_available():
        for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(saved.cpu(), device)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())


def seed_numpy(seed: int) -> None:
    """numpy's global generator, where numpy is in use."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
