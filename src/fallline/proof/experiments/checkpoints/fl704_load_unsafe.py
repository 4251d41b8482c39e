"""FL704: torch.load(weights_only=False) on a file made by somebody else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "FL704",
    claim="With weights_only=False a checkpoint runs whatever code its maker chose while it is loaded; the default refuses it "
    "and runs nothing.",
)
def load_unsafe() -> Measured:
    wrong, wrong_error = _load(False)
    right, right_error = _load()
    return Measured(
        sides={
            "wrong": {"folders that the file made": wrong, "error of torch.load": wrong_error},
            "right": {"folders that the file made": right, "error of torch.load": right_error},
        },
        conclusion=f"with weights_only=False the file made {wrong} folder of its own choice while it was loaded; by default torch.load raises "
        f"{right_error} and {right} are made",
        holds={
            "weights_only=False runs the file's code": wrong == 1,
            "and says nothing": wrong_error == "none",
            "the default refuses the file": right_error == "UnpicklingError",
            "and runs nothing": right == 0,
        },
    )


class _Weights:
    """Looks like weights; unpickling it calls a function with arguments, both of its own choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def _load(weights_only: bool | None = None) -> tuple[int, str]:
    """How many folders loading the file made, and the error of torch.load."""
    with tempfile.TemporaryDirectory() as home:
        trace, file = Path(home, "made-by-the-file"), Path(home, "checkpoint.pt")
        torch.save({"model": _Weights(trace)}, file)
        error = error_of(lambda: torch.load(file, weights_only=weights_only))
        return int(trace.exists()), error
