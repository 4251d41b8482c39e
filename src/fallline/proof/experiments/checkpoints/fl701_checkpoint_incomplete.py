"""FL701: a checkpoint that leaves out a part of the run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import off
from fallline.proof.experiments.checkpoints._run import HALF, Run


@experiment(
    "FL701",
    claim="A run resumed from a checkpoint without the optimizer, the scheduler or the random state is another run; with "
    "everything it ends on the same bits.",
)
def checkpoint_incomplete() -> Measured:
    whole = Run()
    whole.updates(HALF)
    saved = whole.state()
    end = whole.updates(HALF)

    def difference(left_out: str) -> tuple[float, Run]:
        checkpoint = {name: state for name, state in saved.items() if name != left_out}
        run = _resumed(checkpoint)
        return off(run.updates(HALF), end), run

    complete, same = difference("nothing")
    missing = {name: difference(name)[0] for name in ("optimizer", "scheduler", "RNG")}
    _, without_scaler = difference("scaler")
    _, without_optimizer = difference("optimizer")
    scales = without_scaler.scaler.get_scale(), same.scaler.get_scale()
    return Measured(
        sides={
            "wrong": {f"weights differ, no {name} saved": d for name, d in missing.items()}
            | {"loss scale at the end, no scaler saved": scales[0]},
            "right": {"weights differ": complete, "loss scale at the end": scales[1]},
        },
        conclusion="at the end the weights differ by "
        + ", ".join(f"{d:.0%} without the {name}" for name, d in missing.items())
        + f" and by {complete:g} with everything",
        holds={
            "with everything the bits are the same": complete == 0,
            "every part that is left out is missed": min(missing.values()) > 0.01,
            "the loss scale starts again without the scaler": scales[0] < scales[1],
        },
        curves={"wrong": without_optimizer.losses, "right": same.losses},
        axes=("update after the resume, no optimizer saved", "loss"),
    )


def _resumed(checkpoint: dict[str, Any]) -> Run:
    """A new program that reads the checkpoint from its file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "checkpoint.pt")
        torch.save(checkpoint, file)
        run = Run()
        run.restore(torch.load(file))
    return run
