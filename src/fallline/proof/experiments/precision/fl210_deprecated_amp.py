"""FL210: what the old names say and do, and what the new ones do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from fallline.proof.experiment import Measured, experiment

OLD: dict[str, Callable[[], object]] = {
    "torch.cuda.amp.autocast": lambda: torch.cuda.amp.autocast(),
    "torch.cuda.amp.GradScaler": lambda: torch.cuda.amp.GradScaler(),
    "torch.cpu.amp.autocast": lambda: torch.cpu.amp.autocast(),  # type: ignore[attr-defined]
    "torch.cpu.amp.GradScaler": lambda: torch.cpu.amp.GradScaler(),  # type: ignore[attr-defined]
}
NEW: dict[str, Callable[[], object]] = {
    "torch.amp.autocast": lambda: torch.amp.autocast("cpu"),
    "torch.amp.GradScaler": lambda: torch.amp.GradScaler("cpu"),
}


@experiment(
    "FL210",
    claim="The old names still work and give a FutureWarning on each use, and code that names CUDA does nothing for another device.",
)
def deprecated_amp() -> Measured:
    old, new = (_warned(names) for names in (OLD, NEW))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        elsewhere = _matmul_dtype(torch.cuda.amp.autocast())
    here = _matmul_dtype(torch.amp.autocast("cpu"))
    return Measured(
        sides={
            "wrong": {"names that warn": len(old), "a CPU matmul under it runs in": elsewhere},
            "right": {"names that warn": len(new), "a CPU matmul under it runs in": here},
        },
        conclusion=f"{len(old)} of {len(OLD)} old names give a FutureWarning, {len(new)} of {len(NEW)} new ones; a CPU matmul runs in {elsewhere} under torch.cuda.amp.autocast() and in {here} under torch.amp.autocast('cpu')",
        holds={
            "every old name works and warns": len(old) == len(OLD),
            "no new name does": not new,
            "the CUDA name casts nothing on a CPU": elsewhere == "float32" and here == "bfloat16",
        },
    )


def _warned(names: dict[str, Callable[[], object]]) -> list[str]:
    """The names whose use gives a FutureWarning."""
    found = []
    for name, use in names.items():
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            use()
        if any(issubclass(w.category, FutureWarning) for w in heard):
            found.append(name)
    return found


def _matmul_dtype(autocast: torch.amp.autocast) -> str:
    with autocast:
        return str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype).removeprefix("torch.")
