"""Per-parameter numbers of an update, within a budget, without making the training thread wait for a device.

`Numbers` belongs to one optimizer. Around its step:

    numbers.before_step(index, scale=...)   # gradients are complete; the weights are still the old ones
    ...the step...
    numbers.after_step(row)                 # fills row.sample and row.fingerprint when they are due

A sample costs a few passes over the gradients. How often one is taken adapts so that the measured cost stays
within its share of `budget` (of the time between steps; the rest is for the taps, the guard and the recorder) or,
for very short steps, within a small fixed allowance. Between samples not even a clock is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fallline.engine.statistics import has_kernel, moments_of
from fallline.runs.samples import FROZEN, WIDTH, WITH, WITHOUT, Layout, ParameterInfo, Sample
from fallline.watcher.budget import FLOOR_SECONDS, SHARE, left_for_looks
from fallline.watcher.later import Sent, send
from fallline.watcher.probes import local, padded, probes

if TYPE_CHECKING:
    from fallline.runs.update import UpdateRow

__all__ = [
    "Numbers",
    "describe_parameters",
    "fingerprint_due",
    "gradient_sample",
    "next_fingerprint",
]

# Seconds that may be spent per update even when the budget is smaller, in the first updates, where most mistakes show.
EARLY_FLOOR_SECONDS = 50e-6
EARLY_UPDATES = 500
# Seconds that may be spent at the very start.
HEAD_START_SECONDS = 0.03
LONGEST_REST = 64  # updates without a look at the clock
# Fingerprints are taken before updates 0, 1, 2, 3, 4, 6, 8, 12, 16, ... and then every this many, on all ranks alike.
FINGERPRINT_EVERY = 1024
SMALLEST_NORMAL_HALF = 2.0**-14


def describe_parameters(model: torch.nn.Module) -> dict[int, ParameterInfo]:
    """id(parameter) → what people call it, for every parameter of a model."""
    owners = {name: type(module).__name__ for name, module in model.named_modules()}
    return {
        id(p): ParameterInfo(
            name, owners.get(name.rpartition(".")[0], ""), depth, tuple(p.shape), str(p.dtype)[6:]
        )
        for depth, (name, p) in enumerate(model.named_parameters())
    }


def fingerprint_due(index: int) -> bool:
    """Whether parameters are compared before this update: the same on every rank, whatever its speed."""
    if index >= FINGERPRINT_EVERY:
        return index % FINGERPRINT_EVERY == 0
    return index < 4 or not index & ((1 << index.bit_length() - 2) - 1)


def next_fingerprint(index: int) -> int:
    """The first update from this one on before which parameters are compared."""
    while not fingerprint_due(index):
        index += 1
    return index


class Numbers:
    """Samples the gradients and updates of the parameters of one optimizer."""

    def __init__(
        self,
        named: Iterable[tuple[ParameterInfo, Tensor]],
        budget: float = 0.01,
        *,
        half: bool = False,
        fingerprints: bool = False,
    ) -> None:
        self.budget = budget
        self.half = half  # float16 in play: also look for values that underflow
        self.fingerprints = fingerprints  # several ranks: write what whoever reads can compare
        self.failure = ""
        self.spent = 0.0  # seconds of the training thread, in all
        self._credit = HEAD_START_SECONDS
        self._cost = 0.0  # seconds that a sample costs
        self._last = 0.0
        self._last_index = -1
        self._looked = -1  # the update at which the clock was last read
        self.rests_until = 0  # the next update that is one to look at
        self._taken = 0
        self._layouts = 0
        self.waits = False  # something was begun before the step that has to be ended after it
        self._sample: Callable[[], Sample] | None = None
        self._fingerprint: Tensor | None = None
        self._direction: Tensor | None = None
        self._device = _DeviceClock()
        self.refresh(named)
        self.resume()

    def refresh(self, named: Iterable[tuple[ParameterInfo, Tensor]]) -> None:
        """The optimizer's parameters, again: some were added."""
        pairs = [(info, p) for info, p in named if p.device.type != "meta"]
        self.parameters = [p for _, p in pairs]
        self.half = self.half or any(p.dtype is torch.float16 for p in self.parameters)
        self.layout = Layout(self._layouts, [info for info, _ in pairs])
        self._layouts += 1

    def before_step(self, index: int, scale: float = 1.0, scaled: bool = False) -> None:
        """Gradients are complete. `scale`: the loss scale of the backward; `scaled`: they still carry it."""
        try:
            self._before_step(index, scale, scaled)
            self.waits = self._sample is not None or self._fingerprint is not None
        except (
            Exception
        ) as error:  # a tensor subclass that cannot be measured must not stop the training
            self.give_up(error)

    def after_step(self, row: UpdateRow) -> None:
        """Fill in what is due at this update."""
        self.waits = False
        try:
            self._after_step(row)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Measure no more; `failure` says why."""
        self.failure, self.budget, self.fingerprints = repr(error), 0.0, False
        self.waits = False
        self._sample = self._fingerprint = None

    def _before_step(self, index: int, scale: float, scaled: bool) -> None:
        self._sample = self._fingerprint = None
        if not self.parameters:
            return
        if self.fingerprints and fingerprint_due(index):
            self._fingerprint = _fingerprint(self.parameters)
        if index < self.rests_until:
            return
        now, started = self._clock(), time.thread_time()
        floor = EARLY_FLOOR_SECONDS if index < EARLY_UPDATES else FLOOR_SECONDS
        updates = max(index - self._looked, 1)
        left = left_for_looks(self.budget, (now - self._last) / updates)
        earned = max(SHARE * left, floor)
        self._credit = min(self._credit + earned * updates, max(HEAD_START_SECONDS, 2 * self._cost))
        self._last, self._looked = now, index
        self._cost = max(self._cost, self._device.seconds())
        if self.budget and self._credit >= self._cost and self._due(index, earned):
            self._last_index = index
            if self._taken:
                self._device.start(self.parameters[0].device)
            self._sample = self._measure(scale, scaled)
            self._cost = time.thread_time() - started
        elif self._taken > 1:
            self.rests_until = index + self._rest(index, earned)
        self._pay(started)

    def _after_step(self, row: UpdateRow) -> None:
        row.fingerprint, self._fingerprint = _sent(self._fingerprint), None
        if self._sample is None:
            return
        started = time.thread_time()
        row.sample = self._sample()
        row.sample.index = row.index
        self._sample = None
        self._device.stop()
        self._cost += time.thread_time() - started
        self._pay(started)
        self._taken += 1
        if self._taken == 1:
            self._cost = 0.0  # the first sample has compiled and loaded things: it says nothing about the next

    def skipped(self) -> None:
        """The step was not taken: there is no update to measure."""
        self.waits = False
        self._sample = self._fingerprint = None

    def _clock(self) -> float:
        """Where training runs on this CPU, its own seconds: what other programs take of the machine earns nothing."""
        on_cpu = bool(self.parameters) and self.parameters[0].device.type == "cpu"
        return time.process_time() if on_cpu else time.perf_counter()

    def resume(self) -> None:
        """The time until now was not watched and earns nothing."""
        self._last = self._clock()

    def _due(self, index: int, earned: float) -> bool:
        return index - self._last_index >= self._interval(index, earned)

    def _interval(self, index: int, earned: float) -> float:
        """Every update at first, then ever more seldom, until the interval is one that can be kept up."""
        return min(max(1, index // 4), self._cost / earned)

    def _rest(self, index: int, earned: float) -> int:
        """Updates in which no sample can be due yet, by what an update earns now."""
        missing = max(
            (self._cost - self._credit) / earned,
            self._interval(index, earned) - (index - self._last_index),
        )
        return min(max(int(missing), 1), LONGEST_REST)

    def _pay(self, started: float) -> None:
        # seconds of this thread, not of the clock on the wall: a busy machine must not look like an expensive sample
        seconds = time.thread_time() - started
        self.spent += seconds
        # nor must a kernel that is compiled once cost minutes without samples
        self._credit -= seconds if self._taken else min(seconds, HEAD_START_SECONDS / 5)

    @torch.no_grad()
    def _measure(self, scale: float, scaled: bool) -> Callable[[], Sample]:
        """Look at gradients and old weights now; the returned function looks at the new weights."""
        layout, parameters = self.layout, self.parameters
        having = [i for i, p in enumerate(parameters) if p.grad is not None]
        gradients = [_plain(p.grad) for p in parameters if p.grad is not None]
        statistics = gradient_sample(gradients) if gradients else None
        tiny = _tiny(gradients, 1.0 if scaled else scale) if self.half and gradients else None
        divisor = scale if scaled else 1.0
        direction = probes(gradients)[0] if gradients else None
        signal = _cosine(direction, self._direction)
        self._direction = direction
        frozen = {i for i, p in enumerate(parameters) if not p.requires_grad}
        old, sizes = probes(parameters)
        factors = [
            (p.numel() / max(size, 1)) ** 0.5 for p, size in zip(parameters, sizes, strict=True)
        ]

        @torch.no_grad()
        def finish() -> Sample:
            new, _ = probes(parameters)
            moved = send(_norms(new - old, sizes))
            weights = send(_norms(old, sizes))
            measured, small, cosine = map(_sent, (statistics, tiny, signal))

            def numbers() -> tuple[list[float], float]:
                found = _gradient_rows(having, measured, small, divisor)
                rows = _rows(found, frozen, moved.values(), weights.values(), factors)
                return rows, float("nan") if cosine is None else float(cosine.values())

            return Sample(layout, numbers)

        return finish


def gradient_sample(gradients: Sequence[Tensor]) -> Tensor:
    """Norm, mean, std, largest, share of zeros and count of non-finite values of each tensor, as one matrix.

    The one seam for kernels: what this returns may still be in the device's queue.
    """
    # device: a script may have made another one torch's default
    elements = [float(max(g.numel(), 1)) for g in gradients]
    counts = torch.tensor(elements, dtype=torch.float32, device="cpu")
    counts = counts.to(gradients[0].device, non_blocking=True)
    if gradients[0].is_cuda and (moments := _by_kernel(gradients)) is not None:
        sums, squares, largest, zeros, nonfinite = moments.float().unbind(1)
        norms, zeros = squares.sqrt(), zeros / counts
    else:
        norms = torch.stack(torch._foreach_norm(list(gradients), 2, dtype=torch.float32))
        sums = torch.stack([g.sum(dtype=torch.float32) for g in gradients])
        lows, highs = zip(*(_range(g) for g in gradients), strict=True)
        largest = torch.maximum(-torch.stack(lows), torch.stack(highs))
        zeros = 1 - torch.stack([torch.count_nonzero(g) for g in gradients]).float() / counts
        nonfinite = _nonfinite(gradients, norms)
    means = sums / counts
    stds = (norms**2 / counts - means**2).clamp_min(0).sqrt()
    return torch.stack([norms, means, stds, largest, zeros, nonfinite], dim=1)


def _by_kernel(gradients: Sequence[Tensor]) -> Tensor | None:
    """The engine's one-pass kernel: sum, squares, largest, zeros, non-finite of each; None where it cannot run."""
    return moments_of(list(gradients)) if has_kernel(gradients[0]) else None


def _range(gradient: Tensor) -> tuple[Tensor, Tensor]:
    if gradient.numel() == 0:
        zero = gradient.new_zeros((), dtype=torch.float32)
        return zero, zero
    low, high = torch.aminmax(gradient)
    return low.float(), high.float()


def _nonfinite(gradients: Sequence[Tensor], norms: Tensor) -> Tensor:
    """On a CPU the norms are there already: only tensors whose norm is not finite have to be looked at again."""
    if norms.device.type == "cpu":
        suspects = (~torch.isfinite(norms)).tolist()
        counts = [
            int((~torch.isfinite(g)).sum()) if s else 0
            for g, s in zip(gradients, suspects, strict=True)
        ]
        return torch.tensor(counts, dtype=torch.float32, device="cpu")
    return torch.stack([g.numel() - torch.isfinite(g).sum() for g in gradients]).float()


def _sent(tensor: Tensor | None) -> Sent | None:
    return None if tensor is None else send(tensor)


# The one below waits for what was sent: background thread only.


def _gradient_rows(
    having: list[int], statistics: Sent | None, tiny: Sent | None, divisor: float
) -> dict[int, list[float]]:
    """The gradient columns of each parameter that has a gradient."""
    if statistics is None:
        return {}
    smalls = tiny.values() if tiny is not None else [float("nan")] * len(having)
    return {
        i: [
            norm / divisor,
            mean / divisor,
            std / divisor,
            largest / divisor,
            zeros,
            nonfinite,
            small,
        ]
        for i, (norm, mean, std, largest, zeros, nonfinite), small in zip(
            having, statistics.values(), smalls, strict=True
        )
    }


def _rows(
    found: dict[int, list[float]],
    frozen: set[int],
    moved: list[float],
    weights: list[float],
    factors: list[float],
) -> list[float]:
    """The matrix of a sample, row by row as `COLUMNS` says."""
    nan = float("nan")
    missing = [nan] * (WIDTH - 3)
    rows: list[float] = []
    for i, (change, weight) in enumerate(zip(moved, weights, strict=True)):
        rows += found.get(i, missing)
        state = FROZEN if i in frozen else WITH if i in found else WITHOUT
        rows += (weight * factors[i], change / weight if weight else nan, state)
    return rows


def _plain(gradient: Tensor) -> Tensor:
    """Dense local real numbers, whatever the gradient is."""
    gradient = local(gradient.detach())
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    elif gradient.layout is not torch.strided:
        gradient = gradient.values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def _norms(flat: Tensor, sizes: list[int]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(flat.split_with_sizes(sizes))))


def _cosine(now: Tensor | None, before: Tensor | None) -> Tensor | None:
    """Between the gradients of two samples; None when their parameters differ."""
    if now is None or before is None or now.shape != before.shape:
        return None
    cosine: Tensor = torch.dot(now, before) / (now.norm() * before.norm()).clamp_min(1e-38)
    return cosine


@torch.no_grad()
def _fingerprint(parameters: Sequence[Tensor]) -> Tensor:
    """Two sums per parameter: of the probe's values, and of their sizes."""
    sums = [torch.stack([part.sum(1), part.abs().sum(1)], dim=1) for part in padded(parameters)]
    return torch.cat(sums)


@torch.no_grad()
def _tiny(gradients: Sequence[Tensor], scale: float) -> Tensor:
    """Share of the nonzero values that float16 can only hold as subnormals, as they were in backward."""
    flat, sizes = probes(gradients)
    sized = flat.abs() * scale
    present = sized > 0
    small = (present & (sized < SMALLEST_NORMAL_HALF)).float().split_with_sizes(sizes)
    every = present.float().split_with_sizes(sizes)
    few = torch.stack([part.sum() for part in small])
    return few / torch.stack([part.sum() for part in every]).clamp_min(1)


_CudaEvent: Any = torch.cuda.Event


class _DeviceClock:
    """How long samples keep an accelerator busy, read only when the device has long passed them."""

    def __init__(self) -> None:
        self._events: tuple[Any, Any] | None = None
        self._open: Any = None
        self._seconds = 0.0

    def start(self, device: torch.device) -> None:
        if device.type == "cuda" and self._events is None:
            self._open = _CudaEvent(enable_timing=True)
            self._open.record()

    def stop(self) -> None:
        if self._open is not None:
            end: Any = _CudaEvent(enable_timing=True)
            end.record()
            self._events, self._open = (self._open, end), None

    def seconds(self) -> float:
        """Device seconds of the last sample that is known to be over."""
        if self._events is not None and self._events[1].query():  # asks, does not wait
            begin, end = self._events
            self._seconds, self._events = begin.elapsed_time(end) / 1000, None
        return self._seconds
