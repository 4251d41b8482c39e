"""The gradient noise scale (McCandlish et al., 2018): how far a larger batch still helps.

The gradient of a batch is the true gradient G plus noise of variance Σ/B. Their ratio, tr(Σ)/|G|², is a batch size: far below
it a batch of twice the size makes nearly twice the progress per update, far above it the extra samples are wasted.
It is an indication: it grows during training, and it is measured along one point of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn


__all__ = [
    "NoiseScale",
    "gradient_noise_scale",
    "noise_scale_from_norms",
]

_VAGUE = 10  # times between the ends of an estimate that says too little
GROUPS = 4  # sums that are kept, to leave out one at a time: the spread of the estimate


@dataclass
class NoiseScale:
    """`noise_scale` is a number of samples; None where the noise drowns the gradient and only `at_least` is known."""

    noise_scale: float | None
    at_least: float | None
    between: tuple[float, float] | None  # one standard error down and up, where it is known
    batch_size: float  # of one gradient
    gradients: int
    gradient_square: float  # |G|²
    noise_trace: float  # tr(Σ)
    update: int = 0  # after so many updates of a script
    partial: bool = False
    status: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        where = f" after {self.update} updates" if self.update else ""
        lines = [f"noise scale: {self._verdict()}"]
        if self.partial:
            lines.append("  partial: the script ended before all gradients were there.")
        lines += [f"  {note}" for note in self.notes]
        lines += [
            "",
            f"from {self.gradients} gradients of {self.batch_size:g} samples each, at the same parameters{where}",
            f"  {self.gradient_square:>10.3g}  |G|², the true gradient",
            f"  {self.noise_trace:>10.3g}  tr(Σ), the noise of one sample",
            "",
            "Far below it, twice the batch is nearly twice the progress per update; far above it, samples are wasted. It grows as the",
            "loss falls: measure it again later.",
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        now = f"the batch is {self.batch_size:g}"
        if self.noise_scale is None:
            if self.at_least is None:
                return "unknown: the gradients are all zero"
            return f"above {self.at_least:.0f} samples ({now}): the noise drowns the gradient, give more gradients to see how far above"
        spread = f" ({self.between[0]:.3g} to {self.between[1]:.3g})" if self.between else ""
        ratio = self.noise_scale / self.batch_size
        advice = (
            "too uncertain to advise; more gradients (--gradients) say more"
            if self.between and self.between[1] > _VAGUE * self.between[0]
            else "a larger batch (or more accumulation) still pays"
            if ratio > 2
            else "a larger batch is mostly wasted"
            if ratio < 0.5
            else "the batch is about right"
        )
        return f"about {self.noise_scale:.3g} samples{spread}, {now}: {advice}"


def noise_scale_from_norms(
    small_square: float, big_square: float, small_batch: float, big_batch: float
) -> NoiseScale:
    """From the mean squared gradient norms at two batch sizes (of many batches each: one pair is mostly chance)."""
    if not 0 < small_batch < big_batch:
        raise UsageError(
            f"batches of {small_batch:g} and {big_batch:g}: the first must be smaller, or there is nothing to compare"
        )
    square = (big_batch * big_square - small_batch * small_square) / (big_batch - small_batch)
    trace = (small_square - big_square) / (1 / small_batch - 1 / big_batch)
    return NoiseScale(
        trace / square if square > 0 and trace >= 0 else None,
        trace / (big_square or math.inf) if trace > 0 and square <= 0 else None,
        None,
        small_batch,
        round(big_batch / small_batch),
        square,
        trace,
    )


class Gradients:
    """Gradients at one point, one after another: what the estimate needs of them, and not the gradients themselves."""

    def __init__(self) -> None:
        self.count = 0
        self._squares: list[float] = []
        self._sums: list[list[Tensor]] = []

    def add(self, gradient: Sequence[Tensor | None]) -> None:
        import torch

        with torch.no_grad():
            whole = [g.detach().float() for g in gradient if g is not None]
            self._squares.append(sum(float(g.double().square().sum()) for g in whole))
            slot = self.count % GROUPS
            if slot == len(self._sums):
                self._sums.append([g.clone() for g in whole])
            elif len(whole) != len(self._sums[slot]):
                raise UsageError(
                    "not every gradient has the same parameters: some batches leave parts of the model out"
                )
            else:
                torch._foreach_add_(self._sums[slot], whole)
        self.count += 1

    def estimate(self, batch_size: float) -> NoiseScale:
        if self.count < 2:
            raise UsageError(
                f"{self.count} gradients: the noise can be seen from two on, sixteen are good"
            )
        gram = [[_dot(a, b) for b in self._sums] for a in self._sums]
        everyone = range(len(self._sums))
        found = self._without(gram, everyone, batch_size)
        if len(self._sums) == GROUPS and self.count >= 2 * GROUPS and found.noise_scale is not None:
            found.between = self._spread(gram, batch_size, found.noise_scale)
        return found

    def _without(
        self, gram: list[list[float]], groups: Iterable[int], batch_size: float
    ) -> NoiseScale:
        """From the gradients of these groups alone."""
        kept = list(groups)
        squares = [s for i, s in enumerate(self._squares) if i % GROUPS in kept]
        count = len(squares)
        big = sum(gram[a][b] for a in kept for b in kept) / count**2
        found = noise_scale_from_norms(sum(squares) / count, big, batch_size, count * batch_size)
        found.gradients = count
        return found

    def _spread(
        self, gram: list[list[float]], batch_size: float, whole: float
    ) -> tuple[float, float] | None:
        """Jackknife of the logarithm: the noise scale is a ratio."""
        parts = []
        for left_out in range(GROUPS):
            part = self._without(gram, [g for g in range(GROUPS) if g != left_out], batch_size)
            if part.noise_scale is None or part.noise_scale <= 0:
                return None
            parts.append(math.log(part.noise_scale))
        mean = sum(parts) / GROUPS
        error = math.sqrt((GROUPS - 1) / GROUPS * sum((p - mean) ** 2 for p in parts))
        return whole * math.exp(-error), whole * math.exp(error)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))


def gradient_noise_scale(
    model: nn.Module,
    loss_fn: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    batch_size: int | None = None,
) -> NoiseScale:
    """`loss_fn(batch)` is the mean loss of a batch under `model`; sixteen batches of one size are good.

    The model, its gradients and buffers, and the randomness are as before afterwards.
    """
    import torch

    from fallline.engine import rng

    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise UsageError("the model has no parameter that takes a gradient")
    gradients = Gradients()
    random = rng.capture()
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    size: float | None = batch_size
    try:
        for batch in batches:
            size = size if size is not None else samples_in(batch)
            loss = loss_fn(batch)
            gradients.add(torch.autograd.grad(loss, parameters, allow_unused=True))
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        rng.restore(random)
    if size is None:
        raise UsageError(
            "the number of samples in a batch could not be seen: pass batch_size=, and give two batches or more"
        )
    return gradients.estimate(size)


def samples_in(batch: Any) -> int | None:
    """The first dimension of the first tensor in it."""
    from fallline.replay.tensors import tensors_in

    return next((int(t.shape[0]) for t in tensors_in(batch) if t.dim()), None)
