"""The learning-rate range test on a script: at every step its rate is replaced, and put back for its scheduler."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fallline.instruments.clip.rates import RateRange, Sweep, ratios_of, set_rates
from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Observer, Script, run_until

__all__ = ["lr_range_of_script"]


class _Rates(Observer):
    """A loss that has shot up is the answer: the script need not go on until all rates were tried."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._losses: list[Tensor] = []
        self._rate: float | None = None
        self._own: list[Any] = []
        self._ratios: dict[int, list[float]] = {}

    def backward_begins(self, loss: Any) -> None:
        whole = loss[0] if isinstance(loss, list | tuple) else loss
        if isinstance(whole, Tensor) and whole.numel() == 1:
            self._losses.append(whole.detach())

    def step_begins(self, optimizer: Any) -> None:
        ratios = self._ratios.setdefault(id(optimizer), ratios_of(optimizer))
        groups = optimizer.param_groups
        self._own = [g["lr"].clone() if isinstance(g["lr"], Tensor) else g["lr"] for g in groups]
        self._rate = self.sweep.rate
        set_rates(optimizer, ratios, self._rate)

    def step_ends(self, optimizer: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._own, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate

    def update_ends(self, number: int) -> None:
        losses = [float(loss) for loss in self._losses]
        self._losses = []
        if losses and self._rate is not None and not self.over:
            self.over = not self.sweep.note(self._rate, sum(losses) / len(losses))
        self._rate = None


def lr_range_of_script(
    script: Script,
    *,
    start: float = 1e-6,
    end: float = 10.0,
    updates: int = 100,
    progress: Progress | None = None,
) -> RateRange:
    """Run a script with growing rates instead of its own; with accumulation the loss of an update is the mean of its micro-batches."""
    return _sweep_script(script, Sweep(start, end, updates), progress)


def _sweep_script(script: Script, sweep: Sweep, progress: Progress | None) -> RateRange:
    rates = _Rates(sweep)
    ran = run_until(script, rates, updates=sweep.updates, progress=progress)
    if not ran.updates and not ran.interrupted:
        raise NothingMeasured(ran, "before the first rate was tried")
    found = sweep.conclude()
    found.partial = not rates.over
    found.status = 130 if ran.interrupted else 0 if rates.over else ran.status
    if len(ran.optimizers) > 1:
        found.notes.append(
            f"all {len(ran.optimizers)} optimizers of the script got the same rate at the same time"
        )
    return found
