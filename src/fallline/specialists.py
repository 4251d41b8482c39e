"""The ten specialists: who answers for which hundred of codes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SPECIALISTS", "Specialist", "specialist_in", "specialist_of"]


@dataclass(frozen=True, slots=True)
class Specialist:
    name: str
    digit: int
    room: str
    about: str


SPECIALISTS: tuple[Specialist, ...] = (
    Specialist(
        "gradient-management",
        1,
        "gradients",
        "clipping, accumulation, zero_grad, schedulers, vanishing and exploding gradients",
    ),
    Specialist(
        "mixed-precision-and-optimization",
        2,
        "precision",
        "autocast, GradScaler, float16 and bfloat16",
    ),
    Specialist(
        "distributed-training-strategies", 3, "distributed", "DDP, FSDP, samplers, launching"
    ),
    Specialist(
        "tensor-operations-and-memory",
        4,
        "memory",
        "out of memory, leaks, graphs kept alive, activation checkpointing",
    ),
    Specialist(
        "performance-profiling", 5, "performance", "slow steps, device stalls, data loading, timing"
    ),
    Specialist(
        "debugging-techniques", 6, "numerics", "NaN and Inf, unstable losses, spikes and plateaus"
    ),
    Specialist(
        "checkpointing-and-reproducibility",
        7,
        "checkpoints",
        "saving, resuming, seeds, the same bits twice",
    ),
    Specialist(
        "module-design-patterns", 8, "modules", "nn.Module: registration, modes, initialisation"
    ),
    Specialist("custom-autograd-functions", 9, "autograd", "torch.autograd.Function"),
    Specialist(
        "fine-tuning",
        0,
        "tuning",
        "what a batch teaches: labels, padding, chat templates, packing, LoRA, preference and policy losses",
    ),
)

_BY_DIGIT = {s.digit: s for s in SPECIALISTS}
_UNREADABLE = (
    "FL000"  # a file that cannot be read is nobody's mistake in training; debugging answers for it
)


def specialist_of(code: str) -> Specialist:
    """The specialist of a rule code such as `FL201`."""
    return _BY_DIGIT[6 if code == _UNREADABLE else int(code[2])]


def specialist_in(room: str) -> Specialist:
    """The specialist whose rules lie in this folder."""
    return next(s for s in SPECIALISTS if s.room == room)
