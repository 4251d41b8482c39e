"""FL624: the loss jumps far out of its recent range, and returns or ends the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import finite, median, spread
from fallline.rules.numerics._spike import causes, rises, seen_at, spoken

__all__ = ["LossSpike"]


class LossSpike(Rule):
    code = "FL624"
    name = "loss-spike"
    severity = Severity.WARNING
    what = "The loss jumps far out of its own recent range, then comes back, or the run ends there."
    why = (
        "One update undid many: a broken batch, a learning rate at the edge, or an optimizer state that no longer fits. A new level "
        "that stays, such as after a change of training phase, is not a spike."
    )
    instead = (
        "Where one sample made it, look at that sample: the finding names its index in the dataset. Where the learning rate or the gradients had "
        "grown before, clip the gradient norm, lower the learning rate, or raise Adam's `eps` or lower its `beta2`."
    )
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(120):
    inputs = torch.randn(64, 8)
    targets = 3 * inputs[:, :1] + torch.randn(64, 1)
    if update == 80:
        targets[0] = 300.0
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()  # FL624
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(120):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1] + torch.randn(64, 1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
""",
    )

    spreads = 10.0  # above the recent median
    beyond_highest = 3.0  # times as far out as the highest recent loss
    relative = 4.0  # and this many times the recent level
    progress_lost = 0.25  # and this share of what the run had gained
    window = 100
    least_history = 30
    settle = (
        10  # updates in which a spike returns; a new phase of the training is learned more slowly
    )
    thrown = 20.0  # times the recent level, where the learning rate had just been raised or the run fell behind its start
    untrained = 5.0  # times the first losses: few new phases of a training are so much worse than an untrained model,
    rising = 2.0  # and none goes on to rise by this factor: a new phase is learned from its first update on
    beyond_start = 2.0  # at the end of the run: above the first loss by this factor

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            finite_losses = [(i, loss) for i, loss in track.losses() if math.isfinite(loss)]
            spikes = self._spikes(finite_losses, rises(track))
            if spikes:
                index, loss, level = max(spikes, key=lambda s: s[1] - s[2])
                count = f" ({len(spikes)} spikes in the run)" if len(spikes) > 1 else ""
                seen = seen_at(run, track, index)
                found = causes(track, index, seen)
                yield self.finding(
                    track.loss_at,
                    f"The loss spiked at update {index}: {loss:.4g}, where the recent level was {level:.4g}{count}. {spoken(found, seen)}",
                    step=index,
                    causes=found,
                    indices=(seen or {}).get("indices"),
                    samples=(seen or {}).get("samples"),
                    fingerprint=(seen or {}).get("fingerprint"),
                    loss=loss,
                    recent_loss=level,
                    spikes=len(spikes),
                    threshold={"spreads": self.spreads, "relative": self.relative},
                    optimizer=track.optimizer,
                    rank=track.rank,
                )

    def _spikes(
        self, losses: list[tuple[int, float]], raised: set[int]
    ) -> list[tuple[int, float, float]]:
        found: list[tuple[int, float, float]] = []
        start = median(finite([loss for _, loss in losses[:5]]))
        past: list[float] = []
        calm_from = 0
        for position, (index, loss) in enumerate(losses):
            # a cheap look first: this loop sees every update of the run
            if len(past) >= self.least_history and position >= calm_from and loss > max(past):
                level = median(past)
                driven = not raised.isdisjoint((index - 1, index))
                if self._far(loss, level, past, start) and (
                    self._returns(losses, position, level, start)
                    or self._returns_late(losses, position, level, start, driven)
                ):
                    found.append((index, loss, level))
                    calm_from = position + 2 * self.settle
            past.append(loss)
            del past[: -self.window]
        return found

    def _far(self, loss: float, level: float, past: list[float], start: float) -> bool:
        jump = loss - level
        gained = max(start - level, 0.0)
        return (
            jump >= self.spreads * spread(past)
            and jump >= self.beyond_highest * (max(past) - level)
            and jump >= (self.relative - 1) * abs(level)
            and jump >= self.progress_lost * gained
        )

    def _returns_late(
        self,
        losses: list[tuple[int, float]],
        position: int,
        level: float,
        start: float,
        driven: bool,
    ) -> bool:
        """Thrown far away, by a raised learning rate or as no new phase of a training does it: the way back may be long."""
        after = [value for _, value in losses[position : position + 1 + self.window]]
        peak = max(after[: self.settle])
        return (
            len(after) > self.settle
            and peak >= self.thrown * abs(level)
            and (driven or peak >= max(self.untrained * start, self.rising * after[0]))
            and median(after[-self.settle :]) <= level + 0.1 * (peak - level)
        )

    def _returns(
        self, losses: list[tuple[int, float]], position: int, level: float, start: float
    ) -> bool:
        """Back near its old level at once, or the end of the run: anything else is a new phase."""
        loss = losses[position][1]
        after = [value for _, value in losses[position + 1 : position + 1 + self.settle]]
        if len(after) < self.settle:
            return loss >= self.beyond_start * abs(start)
        return median(after[self.settle // 3 :]) <= level + 0.1 * (loss - level)
