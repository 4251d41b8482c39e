"""The engine: the code that a finding tells people to use.

Nothing here is imported before it is used: `import fallline` must not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fallline.engine.checkpoint import (
        Checkpoint,
        load_checkpoint,
        save_checkpoint,
        wait_for_checkpoint,
    )
    from fallline.engine.clipping import clip_grad_norm_
    from fallline.engine.order import Order, Share
    from fallline.engine.ranks import Ranks, distributed
    from fallline.engine.resume import ResumeReport, verify_resume
    from fallline.engine.rewind import Rewind
    from fallline.engine.seeds import Seeds, seed_everything
    from fallline.engine.statistics import GradientStats, gradient_stats
    from fallline.engine.stepper import Stepper
    from fallline.engine.update import UpdateReport

_HOME = {
    "Checkpoint": "checkpoint",
    "GradientStats": "statistics",
    "Order": "order",
    "Ranks": "ranks",
    "ResumeReport": "resume",
    "Rewind": "rewind",
    "Seeds": "seeds",
    "Share": "order",
    "Stepper": "stepper",
    "UpdateReport": "update",
    "clip_grad_norm_": "clipping",
    "distributed": "ranks",
    "gradient_stats": "statistics",
    "load_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "seed_everything": "seeds",
    "verify_resume": "resume",
    "wait_for_checkpoint": "checkpoint",
}

__all__ = [
    "Checkpoint",
    "GradientStats",
    "Order",
    "Ranks",
    "ResumeReport",
    "Rewind",
    "Seeds",
    "Share",
    "Stepper",
    "UpdateReport",
    "clip_grad_norm_",
    "distributed",
    "gradient_stats",
    "load_checkpoint",
    "save_checkpoint",
    "seed_everything",
    "verify_resume",
    "wait_for_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fallline.engine.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fallline.engine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
