"""FL120: gradient norms leave their own recent range by orders of magnitude, and the loss pays for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import finite, median, progress, quantile, spread
from fallline.rules.numerics._spike import causes

__all__ = ["ExplodingGradients"]

_SETTINGS = ("learning-rate", "loss-scale")  # a cause among these is the user's own doing


class ExplodingGradients(Rule):
    code = "FL120"
    name = "exploding-gradients"
    severity = Severity.ERROR
    what = "Gradient norms rise two orders of magnitude above the run's own recent norms, and the loss gets worse or turns non-finite."
    why = (
        "The updates no longer follow the loss: they throw the weights far away, and the run rarely recovers.\n"
        "A factor of ten is normal when layers are unfrozen, a new stage of the data begins, or the learning rate warms up."
    )
    instead = (
        "Clip the norm once per update, before the step (`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)` with "
        "`max_norm` near the healthy norms in the evidence), lower the learning rate, or warm it up."
    )
    facts = ("no-absolute-norms", "learning-rate-before-clipping")
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(60):
    if update == 40:
        optimizer.param_groups[0]["lr"] = 5.0
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL120
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(60):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 8.0)
    optimizer.step()
""",
    )

    factor = 100.0  # above the median of the trailing norms
    above_highest = 10.0  # and above nearly all of them
    window = 200  # updates that make the recent past
    least_history = 5  # with less, the loss must have more than doubled
    loss_spreads = 6.0  # the loss must rise by this many of its own spreads
    settle = 50  # updates in which a spike may still come back

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            found = self._explosion(track)
            if found is not None:
                yield found

    def _explosion(self, track: Any) -> Finding | None:
        losses = track.losses()
        past: list[float] = []
        typical = math.nan
        for index, norm in track.norms():
            if not math.isfinite(norm):
                continue  # where a non-finite gradient was born is said by FL621
            if past:
                # the exact median only for candidates: this loop sees every update of the run
                if len(past) < 32 or index % 16 == 0:
                    typical = median(past)
                if norm >= self.factor * typical / 2:
                    recent = median(past)
                    limit = max(self.factor * recent, self.above_highest * quantile(past, 0.95))
                    if norm >= limit > 0 and (harm := self._harm(losses, index)):
                        return self._report(track, index, norm, recent, harm)
            past.append(norm)
            del past[: -self.window]
        return None

    def _harm(self, losses: list[tuple[int, float]], index: int) -> dict[str, Any] | None:
        """What became of the loss, when that is harm."""
        before = finite([loss for i, loss in losses if i < index][-20:])
        after = [loss for i, loss in losses if index <= i][: self.settle]
        if not before or not after:
            return None
        level = median(before)
        floor = 1e-3 if len(before) >= self.least_history else 0.25
        noise = max(spread(before), floor * abs(level))
        if not all(map(math.isfinite, after)):
            return {"loss_before": level, "loss_after": "not finite"}
        # judge by where the loss is when the dust has settled, or where the run ends
        late = after[-max(1, len(after) // 2) :]
        worse = median(late) > level + self.loss_spreads * noise
        recovering = len(late) >= 10 and progress(late).fell(0.2)
        return (
            {"loss_before": level, "loss_after": median(late)} if worse and not recovering else None
        )

    def _report(
        self, track: Any, index: int, norm: float, recent: float, harm: dict[str, Any]
    ) -> Finding:
        changed = [c["text"] for c in causes(track, index, None) if c["cause"] in _SETTINGS]
        advice = (
            changed[0] if changed else "Clip the norm before the step, or lower the learning rate."
        )
        return self.finding(
            track.at,
            f"Gradients exploded at update {index}: norm {norm:.3g} is {norm / recent:.0f} times the recent {recent:.3g}, "
            f"and the loss went from {_shown(harm['loss_before'])} to {_shown(harm['loss_after'])}. {advice}",
            step=index,
            norm=norm,
            recent_norm=recent,
            threshold=self.factor,
            optimizer=track.optimizer,
            rank=track.rank,
            **harm,
        )


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
