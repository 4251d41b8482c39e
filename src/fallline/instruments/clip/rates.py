"""The learning-rate range test (Smith, 2015): the rate grows a little with every update, and the loss tells where it is too high.

Up to the turn, where the smoothed loss is lowest, a rate makes progress; above it the updates are larger than the loss surface bears. The
steepest fall before the turn is a good rate to begin with: an indication, not the best rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.show.axis import Axis
from fallline.show.picture import Lines
from fallline.show.plot import plot
from fallline.show.terminal import Paint

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


__all__ = ["RateRange", "Sweep", "lr_range_test", "ratios_of", "set_rates"]

SMOOTH = 0.9  # of the mean before, in the moving mean that ends the test
LEAST = 10  # updates, or there is no curve to read
_WIDTH = 76


@dataclass
class RateRange:
    """The curve, and what it says; rates are of the group with the largest one."""

    rates: list[float]
    losses: list[float]  # as they were, one for each update
    smoothed: list[float]
    turn: float | None = None  # the rate at which the smoothed loss was lowest
    steepest: float | None = (
        None  # the rate at which it fell fastest, over the logarithm of the rate
    )
    diverged: float | None = None  # the rate at which the test was ended
    partial: bool = False
    status: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = [f"learning rate: {self._verdict()}"]
        if self.partial:
            lines.append(f"  partial: the test ended after {len(self.rates)} updates.")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, "", *self.plot()])

    def _verdict(self) -> str:
        if self.turn is None:
            return f"unknown: {len(self.rates)} updates are too few for a curve"
        if self.steepest is None:
            return f"the loss never fell: it was lowest at the smallest rate, {self.turn:.2g}"
        if self.diverged is None and self.turn >= self.rates[-2]:
            return f"begin near {self.steepest:.2g}; the loss still fell at the largest rate, {self.turn:.2g}: end the test higher"
        end = f", diverged at {self.diverged:.2g}" if self.diverged is not None else ""
        return f"begin near {self.steepest:.2g}; the loss fell up to {self.turn:.2g}{end}"

    def plot(self) -> list[str]:
        """The curve in characters."""
        points = list(zip(self.rates, self.smoothed, strict=False))
        if len(points) < 2:
            return []
        # what shoots up at the end would press the rest flat
        low, first = min(s for _, s in points), points[0][1]
        high = max(first, low + 1.5 * (first - low))
        kept = [(r, min(s, high)) for r, s in points]
        values = [s for _, s in kept]
        lines = Lines(
            {"smoothed loss": kept},
            Axis(kept[0][0], kept[-1][0], True),
            Axis.over(values, None, False),
            ("learning rate", "loss"),
        )
        return plot(lines, _WIDTH, Paint(False))


class Sweep:
    """One rate after another, each larger by the same factor."""

    def __init__(self, start: float, end: float, updates: int) -> None:
        if not 0 < start < end:
            raise UsageError(
                f"rates from {start:g} to {end:g}: begin above 0 and end above the beginning"
            )
        if updates < LEAST:
            raise UsageError(f"{updates} updates are too few for a curve: use {LEAST} or more")
        self.start, self.end, self.updates = start, end, updates
        self.found = RateRange([], [], [])
        self._mean, self._low = 0.0, math.inf

    @property
    def rate(self) -> float:
        """The next one."""
        share = len(self.found.rates) / (self.updates - 1)
        return self.start * math.exp(share * math.log(self.end / self.start))

    def note(self, rate: float, loss: float) -> bool:
        """The loss that was there when the step of this rate was made; False when it is time to end.

        That is after the last rate, or when the loss is twice what it was at first: there is nothing more to learn.
        """
        found = self.found
        found.rates.append(rate)
        found.losses.append(loss)
        if not math.isfinite(loss):
            found.diverged = rate
            return False
        self._mean = SMOOTH * self._mean + (1 - SMOOTH) * loss
        recent = self._mean / (1 - SMOOTH ** len(found.losses))
        self._low = min(self._low, recent)
        first = found.losses[0]
        if recent > first + max(first - self._low, abs(first)):
            found.diverged = rate
        return found.diverged is None and len(found.rates) < self.updates

    def conclude(self) -> RateRange:
        """Read the curve: the median of some updates behind and ahead, so that it is not late and one bad batch is nothing."""
        found = self.found
        losses = [loss for loss in found.losses if math.isfinite(loss)]
        reach = max(2, len(losses) // 20)
        found.smoothed = _medians(losses, reach)
        if len(losses) < LEAST:
            return found
        lowest = min(range(len(losses)), key=lambda i: found.smoothed[i])
        # the turn is sharp, a wide median is not: look again, closely, around it
        close = _medians(losses, 2)
        near = range(max(lowest - reach, 0), min(lowest + reach + 1, len(losses)))
        lowest = min(near, key=lambda i: close[i])
        # a loss is of the parameters before its own step: what a rate did shows in the next one
        found.turn = found.rates[max(lowest - 1, 0)]
        falls = [
            (found.smoothed[min(i + reach, lowest)] - found.smoothed[max(i - reach, 0)], i)
            for i in range(1, lowest)
        ]
        if falls and min(falls)[0] < 0:
            found.steepest = found.rates[min(falls)[1]]
        return found


def _medians(values: list[float], reach: int) -> list[float]:
    return [median(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]


def lr_range_test(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    start: float = 1e-6,
    end: float = 10.0,
    updates: int = 100,
) -> RateRange:
    """Train `model` with growing rates; `loss_fn(batch)` gives the loss. The batches are taken round and round.

    Model, gradients, optimizer and randomness are as before afterwards.
    """
    import copy

    import torch

    from fallline.engine import rng

    sweep = Sweep(start, end, updates)
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    gradients = [(p, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    before, random = copy.deepcopy(optimizer.state_dict()), rng.capture()
    ratios = ratios_of(optimizer)
    try:
        for batch in _round(batches):
            optimizer.zero_grad()
            loss = loss_fn(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            rate = sweep.rate
            set_rates(optimizer, ratios, rate)
            optimizer.step()
            if not sweep.note(rate, float(loss.detach())):
                break
    except KeyboardInterrupt:
        sweep.found.partial = True
    finally:
        with torch.no_grad():
            model.load_state_dict(state)
        optimizer.load_state_dict(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        rng.restore(random)
    return sweep.conclude()


def _round(batches: Iterable[Any]) -> Iterable[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise UsageError(
                "there are no batches (left): give a list or a loader, not an iterator that is used up"
            )


def ratios_of(optimizer: Any) -> list[float]:
    """The groups keep their proportions."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    most = max(rates)
    return [rate / most if most > 0 else 1.0 for rate in rates]


def set_rates(optimizer: Any, ratios: list[float], rate: float) -> None:
    import torch

    for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * ratio)
        else:
            group["lr"] = rate * ratio
