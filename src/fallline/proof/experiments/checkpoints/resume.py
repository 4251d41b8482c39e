"""Resuming a run: what has to be in the checkpoint, and what torch.load lets through."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import flat, off

HALF = 20  # the run is interrupted after so many updates, and ends after twice as many


class _Training:
    """A run with everything that has state: weights, Adam, a schedule, a scaler, dropout and shuffling."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(256, 8), torch.randn(256, 1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.95)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=5)

    def updates(self, count: int) -> Tensor:
        for _ in range(count):
            rows = torch.randint(256, (32,))
            loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
        return flat(self.model.parameters())

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "RNG": torch.get_rng_state(),
            }
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        for name in ("model", "optimizer", "scheduler", "scaler"):
            if name in state:
                getattr(self, name).load_state_dict(copy.deepcopy(state[name]))
        if "scheduler" not in state:  # the optimizer's state carries the rate of the moment
            for group, rate in zip(
                self.optimizer.param_groups, self.scheduler.base_lrs, strict=True
            ):
                group["lr"] = rate
        if "RNG" in state:
            torch.set_rng_state(state["RNG"])


@experiment(
    "resume-needs-everything",
    claim="A resumed run repeats the uninterrupted one bit by bit only with weights, optimizer, scheduler and RNG state; the scaler's scale restarts without its own.",
)
def resume_needs_everything() -> Measured:
    whole = _Training()
    whole.updates(HALF)
    saved = whole.state()
    truth = whole.updates(HALF)

    def resumed_without(missing: str) -> tuple[float, float]:
        run = _Training()
        run.restore({name: state for name, state in saved.items() if name != missing})
        end = run.updates(HALF)
        return off(end, truth), run.scaler.get_scale()

    complete = resumed_without("")
    errors = {
        name: resumed_without(name)[0] for name in ("optimizer", "scheduler", "RNG", "scaler")
    }
    restarted = resumed_without("scaler")[1]
    return Measured(
        sides={
            "complete": {"weights differ by": complete[0], "scale at the end": complete[1]},
            **{f"without the {name}": {"weights differ by": e} for name, e in errors.items()},
            "scaler": {"scale at the end without its state": restarted},
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
