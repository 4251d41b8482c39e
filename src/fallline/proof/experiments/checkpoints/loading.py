"""Weights whose names or shapes are not the model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment


def _changed(model: nn.Module, state: dict[str, torch.Tensor], strict: bool) -> int:
    """How many values loading changed; -1 where it raised."""
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    try:
        model.load_state_dict(state, strict=strict)
    except RuntimeError:
        return -1
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return int((before != after).sum())


@experiment(
    "strict-false-loads-nothing",
    claim="Keys saved from inside DataParallel or torch.compile carry a prefix; with strict=False such a file loads without an error and changes no weight. A wrong shape raises even then.",
    taught="strict=False fixes the missing keys.",
)
def strict_false_loads_nothing() -> Measured:
    torch.manual_seed(0)

    def fresh() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    saved = fresh()
    wrapped = nn.DataParallel(saved).state_dict()
    compiled: Any = torch.compile(saved, backend="eager")
    prefixes = [
        next(iter(state)).removesuffix("0.weight") for state in (wrapped, compiled.state_dict())
    ]
    stripped = {key.removeprefix("module."): value for key, value in wrapped.items()}
    other = {**stripped, "2.weight": torch.zeros(5, 8), "2.bias": torch.zeros(5)}
    total = sum(p.numel() for p in saved.parameters())
    strict, loose = _changed(fresh(), wrapped, True), _changed(fresh(), wrapped, False)
    right, shape = _changed(fresh(), stripped, True), _changed(fresh(), other, False)
    return Measured(
        sides={
            "prefixed keys": {"values changed, strict=False": loose, "strict raises": strict == -1},
            "prefix taken off": {"values changed, strict": right},
            "another number of classes": {"strict=False raises": shape == -1},
        },
        conclusion=f"keys begin with “{prefixes[0]}” and “{prefixes[1]}”; with strict=False {loose} of {total} values are loaded and nothing is said, with the prefix taken off {right}; a head of another size raises with strict=False too",
        holds={
            "wrappers add a prefix": prefixes == ["module.", "_orig_mod."],
            "strict raises": strict == -1,
            "strict=False loads nothing": loose == 0,
            "without the prefix all is loaded": right == total,
            "a wrong shape raises all the same": shape == -1,
        },
    )
