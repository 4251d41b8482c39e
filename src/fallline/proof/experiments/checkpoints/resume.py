"""Resuming a run: what has to be in the checkpoint, and what torch.load lets through."""

from __future__ import annotations

import io
from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import off
from fallline.proof.experiments.checkpoints._run import HALF, Run, interrupted


@experiment(
    "resume-needs-everything",
    claim="A resumed run repeats the uninterrupted one bit for bit only with weights, optimizer, scheduler and RNG state; the scaler's scale restarts without its own.",
)
def resume_needs_everything() -> Measured:
    saved, truth = interrupted()

    def resumed_without(missing: str) -> tuple[float, float]:
        run = Run()
        run.restore({name: state for name, state in saved.items() if name != missing})
        end = run.updates(HALF)
        return off(end, truth), run.scaler.get_scale()

    complete = resumed_without("")
    parts = ("optimizer", "scheduler", "RNG", "scaler")
    incomplete = {name: resumed_without(name) for name in parts}
    errors = {name: error for name, (error, _) in incomplete.items()}
    restarted = incomplete["scaler"][1]
    return Measured(
        sides={
            name: {"weights differ by": error, "scale at the end": scale}
            for name, (error, scale) in (
                ("complete", complete),
                *((f"without the {part}", found) for part, found in incomplete.items()),
            )
        },
        conclusion=(
            f"resumed with everything the weights differ by {complete[0]:g}; without the optimizer by {100 * errors['optimizer']:.0f}%, "
            f"the scheduler {100 * errors['scheduler']:.0f}%, the RNG {100 * errors['RNG']:.0f}%; without the scaler's state the scale is "
            f"{restarted:,.0f} instead of {complete[1]:,.0f}"
        ),
        holds={
            "complete is bitwise the same": complete[0] == 0,
            "each of optimizer, scheduler and RNG is missed": min(
                errors[n] for n in ("optimizer", "scheduler", "RNG")
            )
            > 1e-3,
            "the scale starts again": restarted < complete[1],
        },
    )


@experiment(
    "weights-only-and-numpy-rng",
    claim="torch.load's default (weights_only=True) rejects a checkpoint that holds numpy's RNG state; torch's own passes.",
)
def weights_only_and_numpy_rng() -> Measured:
    import numpy as np

    keys = np.random.get_state(legacy=False)["state"]["key"]
    torchs = error_of(partial(_roundtrip, torch.get_rng_state()))
    numpys = error_of(partial(_roundtrip, np.random.get_state()))
    as_tensor = error_of(partial(_roundtrip, torch.tensor(keys, dtype=torch.int64)))
    return Measured(
        sides={
            "torch's RNG state": {"torch.load raises": torchs},
            "numpy's RNG state": {"torch.load raises": numpys},
            "numpy's keys as a tensor": {"torch.load raises": as_tensor},
        },
        conclusion=f"torch.load raises {numpys} on numpy's RNG state, {torchs} on torch's, {as_tensor} on numpy's keys as a tensor",
        holds={
            "numpy's state is rejected": numpys == "UnpicklingError",
            "torch's passes": torchs == "none",
            "numpy's keys as a tensor pass": as_tensor == "none",
        },
    )


def _roundtrip(state: object) -> object:
    file = io.BytesIO()
    torch.save({"rng": state}, file)
    file.seek(0)
    return torch.load(file)
