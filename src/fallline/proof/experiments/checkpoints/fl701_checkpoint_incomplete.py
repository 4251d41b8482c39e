"""FL701: a checkpoint that leaves out a part of the run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import off
from fallline.proof.experiments.checkpoints._run import HALF, Run, interrupted


@experiment(
    "FL701",
    claim="A run resumed from a checkpoint without the optimizer, the scheduler or the random state is another run; with "
    "everything it ends on the same bits.",
)
def checkpoint_incomplete() -> Measured:
    saved, end = interrupted()
    runs = {
        left_out: _resumed({name: state for name, state in saved.items() if name != left_out})
        for left_out in ("nothing", "optimizer", "scheduler", "RNG", "scaler")
    }
    apart = {left_out: off(run.weights, end) for left_out, run in runs.items()}
    missed = ("optimizer", "scheduler", "RNG")
    scale, restarted = runs["nothing"].scale, runs["scaler"].scale
    return Measured(
        sides={
            "wrong": {"weights differ at the end": apart["optimizer"]},
            "right": {"weights differ at the end": apart["nothing"], "loss scale": scale},
            "no scheduler saved": {"weights differ at the end": apart["scheduler"]},
            "no RNG saved": {"weights differ at the end": apart["RNG"]},
            "no scaler saved": {"loss scale": restarted},
        },
        conclusion="at the end the weights differ by "
        + ", ".join(f"{apart[name]:.0%} without the {name}" for name in missed)
        + f" and by {apart['nothing']:g} with everything",
        holds={
            "with everything the bits are the same": apart["nothing"] == 0,
            "every part that is left out is missed": min(apart[name] for name in missed) > 0.01,
            "the loss scale starts again without the scaler": restarted < scale,
        },
        curves={"wrong": runs["optimizer"].losses, "right": runs["nothing"].losses},
        axes=("update after the resume, no optimizer saved", "loss"),
    )


class _resumed:
    """A new program that reads the checkpoint from its file and trains on to the end."""

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        run = Run()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "checkpoint.pt")
            torch.save(checkpoint, file)
            run.restore(torch.load(file))
        self.weights = run.updates(HALF)
        self.losses = run.losses
        self.scale = run.scaler.get_scale()
