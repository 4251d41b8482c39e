"""FL625: the loss has not moved although updates are being made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import Progress, finite, median, progress, sensitivity, spread, warming

__all__ = ["LossFlat"]


class LossFlat(Rule):
    code = "FL625"
    name = "loss-flat"
    severity = Severity.WARNING
    yields_to = ("FL135",)
    what = "The loss is where it was at the start, although gradients point the same way update after update."
    why = (
        "There is a direction that would lower the loss and the run does not follow it: the learning rate is zero or far too small, "
        "the optimizer holds other tensors, or the output is saturated. A converged run has moved before, a game between two models is "
        "flat by nature, and gradients of pure noise have nothing to follow: these are not reported."
    )
    instead = "Check that the learning rate is what you meant (the evidence shows it), that parameters change, and that one batch can be overfitted."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for update in range(150):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()  # FL625
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(150):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    least_updates = 100
    least_equal = 20  # updates, where all losses are equal to the bit
    least_samples = 8
    moved = 0.02  # share of the loss: more than this since the start is movement
    at_once = 4.0  # spreads of the loss: a start so far above the rest is not noise
    weights_moved = 1e-3  # share of their size, summed over the run
    signal = 0.3  # cosine of gradients from one sample to the next
    sensitivity = 0.01  # |gradient| * |weights| / |loss|: below, there is nothing left to learn

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            losses = finite([loss for _, loss in track.losses()])
            if self._constant(track, losses):
                yield self._never_changes(track, losses)
                continue
            if len(losses) < self.least_updates or len(track.samples) < self.least_samples:
                continue
            if _adversarial(run, track) or warming(track):
                continue
            trend = progress(losses, 1 / 3)
            if not (self._still(track, trend) or self._flat(trend, losses)):
                continue
            if self._fell_at_once(losses, trend):
                continue
            signals = finite([s.signal for s in track.samples[-50:]])
            if (
                len(signals) < self.least_samples
                or median(signals) < self.signal
                or sensitivity(track.samples[-1], trend.after) < self.sensitivity
            ):
                continue
            rate = track.rows[-1].lr
            yield self.finding(
                track.loss_at,
                f"The loss has not moved in {track.rows[-1].index + 1} updates ({trend.before:.4g} → {trend.after:.4g}), though the "
                f"gradients agree on a direction (cosine {median(signals):.2f})"
                + ("." if rate is None else f"; the learning rate is {rate:g}."),
                step=track.rows[-1].index,
                loss_before=trend.before,
                loss_after=trend.after,
                threshold=self.moved,
                signal=median(signals),
                lr=rate,
                optimizer=track.optimizer,
                rank=track.rank,
            )

    def _constant(self, track: Any, losses: list[float]) -> bool:
        """Equal to the bit from the first update on, though gradients agree on a direction: no noise, no progress, no decay does that.

        A surrogate such as `(ratio - ratio.detach()) * advantage` has the same value always, and gradients that do not agree.
        """
        if len(losses) < self.least_equal or min(losses) != max(losses) or warming(track):
            return False
        signals = finite([s.signal for s in track.samples[-50:] if s.total_norm() > 0])
        return bool(signals) and median(signals) >= self.signal

    def _never_changes(self, track: Any, losses: list[float]) -> Finding:
        rate = track.rows[-1].lr
        return self.finding(
            track.loss_at,
            f"The loss is exactly {losses[-1]:.6g} in all of the {len(losses)} updates so far, although its gradients are not zero: the updates do "
            "not reach the weights that make it. Check "
            + ("" if rate is None else f"the learning rate ({rate:g}), ")
            + "that the optimizer holds this model's parameters, and that nothing puts the weights back.",
            step=track.rows[-1].index,
            loss_before=losses[0],
            loss_after=losses[-1],
            threshold=0.0,
            lr=rate,
            optimizer=track.optimizer,
            rank=track.rank,
        )

    def _still(self, track: Any, trend: Progress) -> bool:
        """The weights have not moved enough for the loss to move, however noisy it is."""
        ratios = [max(finite(s.column("ratio")), default=0.0) for s in track.samples]
        path = sum(ratios) / len(ratios) * float(track.samples[-1].index)
        return path <= self.weights_moved and not trend.fell(self.moved)

    def _flat(self, trend: Progress, losses: list[float]) -> bool:
        """No part of the run lies below its beginning, and its noise is small enough to say so."""
        limit = self.moved * max(abs(trend.before), trend.noise)
        if abs(trend.before - trend.after) >= limit or 2 * trend.error >= limit:
            return False
        fifth = len(losses) // 5
        parts = [median(losses[k * fifth : (k + 1) * fifth]) for k in range(5)]
        return parts[0] - min(parts[1:]) <= limit

    def _fell_at_once(self, losses: list[float], trend: Progress) -> bool:
        """The very first losses lie far above all others: the run has learned quickly, and is at its floor."""
        floor = losses[len(losses) // 3 :]
        return median(losses[:5]) - median(floor) > max(
            self.at_once * spread(floor), self.moved * abs(trend.before)
        )


def _adversarial(run: Any, track: Any) -> bool:
    """Several optimizers take turns on one rank: their losses hold each other where they are."""
    mine = {r.index for r in track.rows}
    others = [
        t for t in run.tracks if t.rank == track.rank and t is not track and len(t.rows) >= 10
    ]
    return any(len(t.rows) * 20 >= len(mine) and _overlap(t, track) for t in others)


def _overlap(a: Any, b: Any) -> bool:
    return bool(a.rows[0].time <= b.rows[-1].time and b.rows[0].time <= a.rows[-1].time)
