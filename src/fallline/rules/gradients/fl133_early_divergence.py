"""FL133: within its first updates the loss grows by an order of magnitude and does not come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import finite, median, update_ratio
from fallline.rules.numerics._spike import rises

__all__ = ["EarlyDivergence"]


class EarlyDivergence(Rule):
    code = "FL133"
    name = "early-divergence"
    severity = Severity.ERROR
    what = "Within its first updates the loss grows to ten times its start and stays there, while each update changes the weights by a large share of their size."
    why = (
        "The learning rate is far too large: an update jumps over the valley instead of going down into it, and the next one jumps further. What "
        "comes later (dead units, saturated outputs, a NaN) follows from this, and advice about those does not help."
    )
    instead = "Lower the learning rate by a factor of 10 to 100. `fallline measure clip --lr-range train.py` shows which rates the loss tolerates."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=20.0)
for update in range(24):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()  # FL133
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
for update in range(24):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    early = 100  # updates
    least_updates = 10
    growth = 10.0  # times the loss at the start
    ratio = 0.3  # of the weights' norm, changed by one update: data that grows makes a loss grow, too, and no such updates

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            losses = finite([loss for index, loss in track.losses() if index < self.early])
            if len(losses) < self.least_updates or not track.samples:
                continue
            # the first loss is the only one that no update has touched
            start, now = losses[0], median(losses[-5:])
            if start <= 0 or now < self.growth * start or self._back(track, now):
                continue
            ratio = self._largest(track)
            if ratio >= self.ratio and not self._raised(track, start):
                yield self._told(track, start, now, ratio)

    def _largest(self, track: Any) -> float:
        """The largest early update, as a share of the weights: they soon grow, and the same updates look small."""
        early = [s for s in track.samples if s.index < self.early]
        return max(finite([update_ratio(s, vectors=True) for s in early]), default=0.0)

    def _raised(self, track: Any, start: float) -> bool:
        """The loss was fine until the learning rate was raised, which FL120 and FL624 say."""
        raised = max((i for i in rises(track) if i >= self.least_updates), default=0)
        before = finite([loss for index, loss in track.losses() if index <= raised])
        return raised > 0 and median(before[-5:]) < self.growth * start

    def _back(self, track: Any, high: float) -> bool:
        """The run has come down again since."""
        later = finite([loss for index, loss in track.losses() if index >= self.early])
        return bool(later) and median(later[-20:]) < high / self.growth

    def _told(self, track: Any, start: float, now: float, ratio: float) -> Finding:
        rate = next((row.lr for row in track.rows if row.lr is not None), None)
        updates = min(self.early, track.rows[-1].index + 1)
        named = "" if rate is None else f" of {rate:g}"
        return self.finding(
            track.loss_at,
            f"The loss grows from {start:.4g} to {now:.4g} in the first {updates} updates: with a learning rate{named}, one update changes "
            f"the weights by up to {ratio:.2g} times their size. Lower the learning rate by a factor of 10 to 100.",
            step=updates - 1,
            loss_before=start,
            loss_after=now,
            threshold=self.growth,
            ratio=ratio,
            lr=rate,
            optimizer=track.optimizer,
            rank=track.rank,
        )
