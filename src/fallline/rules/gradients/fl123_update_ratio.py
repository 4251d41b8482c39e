"""FL123: updates too large or too small for the weights they change, in a run whose loss does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import (
    Progress,
    finite,
    median,
    progress,
    sensitivity,
    update_ratio,
    warming,
)

__all__ = ["UpdateRatio"]


class UpdateRatio(Rule):
    code = "FL123"
    name = "update-ratio"
    severity = Severity.WARNING
    yields_to = ("FL133", "FL135")
    what = "The size of the updates over the size of the weights is outside its healthy band, and the loss has not improved."
    why = (
        "Updates above a tenth of the weights overwrite more and more of what was learned; updates below a millionth change nothing.\n"
        "About a thousandth to a hundredth is usual. A decayed or warming-up learning rate is small on purpose, and a falling loss is its own proof."
    )
    instead = "Lower or raise the learning rate by the factor that brings the ratio in the evidence near 1e-3."
    facts = ("update-to-weight-ratio", "tiny-norms-and-adam-eps")
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL123
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    low = 1e-6
    high = 0.1
    least_updates = 50
    least_samples = 8
    least_after = 20  # updates, after one that left nothing of the weights
    share = 0.8  # of the samples
    high_samples = 5  # in a row
    outgrown = 50.0  # times its size at the start, in the middle of the matrices
    hardly = 0.2  # share of the loss
    improvement = 0.02  # a loss that fell by this share since the start moves well enough
    whole_run = (
        1e-3  # ratios summed over the run: below, nothing the updates did can show in the loss
    )
    sensitivity = 0.01  # |gradient| * |weights| / |loss|: below, there is nothing left to learn

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            samples = track.samples
            ratios = [r for r in map(update_ratio, samples) if r is not None]
            trend = progress([loss for _, loss in track.losses()])
            if not ratios or math.isnan(trend.before):
                continue
            updates = samples[-1].index - samples[0].index + 1
            if updates >= self.least_after and self._erased(samples, ratios, trend):
                yield self._report(track, "large", max(ratios), self.outgrown, trend)
                continue
            if len(ratios) < self.least_samples or updates < self.least_updates:
                continue
            ratio = self._overwriting(ratios)
            if ratio is not None and (_no_better(track) or self._outgrown(samples, trend)):
                first = replace(trend, before=finite([loss for _, loss in track.losses()])[0])
                yield self._report(track, "large", ratio, self.high, first)
            elif self._rests(track, ratios, trend):
                yield self._report(track, "small", median(ratios), self.low, trend)

    def _overwriting(self, ratios: list[float]) -> float | None:
        """The typical ratio of a stretch of samples that are all too high; None when there is none."""
        stretch: list[float] = []
        for ratio in ratios:
            stretch = [*stretch, ratio] if ratio >= self.high else []
            if len(stretch) == self.high_samples:
                return median(stretch)
        return None

    def _erased(self, samples: list[Any], ratios: list[float], trend: Progress) -> bool:
        """One update put something else in the place of all weights, and nothing is learned since: the output is the same for every input."""
        return max(ratios) >= self.outgrown and self._outgrown(samples, trend)

    def _outgrown(self, samples: list[Any], trend: Progress) -> bool:
        """Nothing is left of the weights that the run began with, and the loss has hardly fallen: adapters, which a model can ignore."""
        growth = _growth(samples[0], samples[-1])
        return growth is not None and growth >= self.outgrown and trend.fall < self.hardly

    def _rests(self, track: Any, ratios: list[float], trend: Progress) -> bool:
        """The whole run, not its end: a rate that has decayed is small on purpose."""
        return (
            sum(r <= self.low for r in ratios) >= self.share * len(ratios)
            and sum(ratios) / len(ratios) * track.samples[-1].index <= self.whole_run
            and not warming(track)
            and not trend.fell(self.improvement)
            and sensitivity(track.samples[-1], trend.after) >= self.sensitivity
        )

    def _report(
        self, track: Any, verdict: str, ratio: float, limit: float, trend: Progress
    ) -> Finding:
        rate = max((row.lr for row in track.rows if row.lr is not None), default=None)
        named = "" if rate is None else f" of {rate:g}"
        change = "Lower" if verdict == "large" else "Raise"
        return self.finding(
            track.at,
            f"The learning rate{named} is far too {verdict}: an update changes the weights by {ratio:.2g} of their size (about 1e-3 is usual), and the "
            f"loss {_moves(trend)} ({trend.before:.4g} → {trend.after:.4g}). {change} it by a factor of {_factor(ratio):,}.",
            step=track.samples[-1].index,
            ratio=ratio,
            threshold=limit,
            lr=track.rows[-1].lr if track.rows else None,
            loss_before=trend.before,
            loss_after=trend.after,
            optimizer=track.optimizer,
            rank=track.rank,
        )


def _moves(trend: Progress) -> str:
    return "hardly falls" if trend.after < trend.before else "does not fall"


def _factor(ratio: float) -> int:
    """The power of ten that brings the ratio near its usual size."""
    apart = abs(math.log10(ratio / 1e-3)) if ratio > 0 else 3.0
    return int(10 ** min(max(math.floor(apart), 1), 6))


def _growth(first: Any, last: Any) -> float | None:
    """How many times its size at the start the middle one of the matrices has; None where they are not the same ones."""
    if first.layout is not last.layout:
        return None
    columns = zip(
        first.layout.parameters, first.column("weight"), last.column("weight"), strict=True
    )
    grown = [now / start for p, start, now in columns if len(p.shape) >= 2 and start > 0]
    return median(grown) if grown else None


def _no_better(track: Any) -> bool:
    """Whether the loss is, in the end, where it was before the first update, or above."""
    losses = finite([loss for _, loss in track.losses()])
    return median(losses[-max(3, len(losses) // 10) :]) >= losses[0]
