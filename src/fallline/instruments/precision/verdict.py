"""float16, bfloat16 or neither: decided from what was measured, and said with the numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fallline.instruments.precision.changes import Repair
from fallline.instruments.precision.run import Outcome

__all__ = ["WORTH", "Verdict", "decide"]

WORTH = 1.1  # times faster than float32: less is within what a run varies by


@dataclass(frozen=True)
class Verdict:
    """`choice`: "bf16 autocast", "fp16 autocast" or "fp32"."""

    choice: str
    says: str
    scaling: bool = False  # whether the choice needs a scaled loss

    def to_json(self) -> dict[str, object]:
        return {"choice": self.choice, "loss_scaling": self.scaling, "says": self.says}


def decide(
    outcomes: dict[str, Outcome],
    repairs: dict[str, Repair],
    seconds: dict[str, float],
    native: dict[str, bool | None],
    device: str,
) -> Verdict:
    """The format to train in on this device, best first: works as it is, native, faster."""
    gain = {n: seconds["fp32"] / s for n, s in seconds.items() if "fp32" in seconds and s > 0}
    plain = outcomes.get("fp32")
    if plain is not None and plain.raised is not None:
        where = f" at {plain.raised_at}" if plain.raised_at else ""
        return Verdict(
            "fp32",
            f"not decided: the code fixes the types itself and cannot run in a different one ({plain.raised}{where}). Take its own casts out and measure again",
        )
    halves: tuple[str, ...] = ("bf16 autocast", "fp16 autocast")
    working = [n for n in halves if n in outcomes and outcomes[n].works]
    said = [_said(n, outcomes[n], repairs.get(n), gain.get(n)) for n in outcomes if "autocast" in n]
    if not working:
        fixed = [n for n, r in repairs.items() if "autocast" in n and r.places and r.verified]
        after = f" With the change below {' and '.join(fixed)} would work." if fixed else ""
        return Verdict(
            "fp32", f"neither as the code is: stay with float32. {' '.join(said)}{after}"
        )
    fast = [n for n in working if gain.get(n, WORTH) >= WORTH]
    if not fast:
        best = max((gain.get(n, 0.0) for n in working), default=0.0)
        return Verdict(
            "fp32",
            f"neither: half precision gains nothing here (the best is {best:.2f} times the speed of float32 on this {device}). "
            f"{' '.join(said)} It can still be worth its memory: `fallline measure memory`.",
        )
    choice = _best(fast, gain, native)
    scaling = not outcomes[choice].works_unscaled
    how = " with loss scaling" if scaling else ""
    how = " with loss scaling (GradScaler)" if choice.startswith("fp16") else how
    emulated = ""
    if native.get(choice[:4]) is False:
        emulated = f" {choice[:4]} is emulated on this {device}, not in its hardware."
    unmeasured = "" if seconds else " The speed was not measured."
    return Verdict(
        choice,
        f"{choice}{how}. {' '.join(said)}{emulated}{unmeasured}",
        choice.startswith("fp16") or scaling,
    )


def _best(fast: list[str], gain: dict[str, float], native: dict[str, bool | None]) -> str:
    """bfloat16 needs no scaling: it wins unless it is emulated, or float16 is clearly faster."""
    if len(fast) == 1:
        return fast[0]
    if native.get("bf16") is False and native.get("fp16") is not False:
        return "fp16 autocast"
    if gain.get("fp16 autocast", 0.0) > WORTH * gain.get("bf16 autocast", 1.0):
        return "fp16 autocast"
    return "bf16 autocast"


def _said(name: str, outcome: Outcome, repair: Repair | None, gain: float | None) -> str:
    if outcome.raised is not None:
        return f"{name} raises ({outcome.raised})."
    first = outcome.first_failure
    parts = []
    if not outcome.works:
        finite = outcome.loss is not None and math.isfinite(outcome.loss)
        reason = "it is too far off" if finite else "its loss is not finite"
        parts.append(f"fails: {reason}" + (f", first in `{first.op}`" if first else ""))
    elif not outcome.works_unscaled:
        parts.append("works only with loss scaling")
    else:
        parts.append("works")
    gradients = outcome.gradients
    if outcome.works and outcome.loss_error is not None:
        parts.append(f"loss off by {outcome.loss_error:.1e}")
    if outcome.works and gradients is not None and gradients.error is not None:
        parts.append(f"gradients by {gradients.error:.1e}")
    if gain is not None:
        parts.append(f"{gain:.2f} times the speed of float32")
    return f"{name}: {', '.join(parts)}."
