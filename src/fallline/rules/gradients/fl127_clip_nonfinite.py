"""FL127 clip-nonfinite: clipping met a NaN or Inf and spread it to every gradient."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class ClipNonfinite(Observed):
    code = "FL127"
    name = "clip-nonfinite"
    severity = Severity.ERROR
    what = "The norm that clipping computed was NaN or Inf, so it multiplied every gradient by NaN or by zero."
    why = "One NaN among the gradients makes the norm NaN, and the clip turns all gradients into NaN and, with the step, all parameters. One Inf turns every finite gradient into zero. Without the clip only the affected parameters would have been lost."
    instead = "Pass `error_if_nonfinite=True` to `clip_grad_norm_`, or skip the step when the norm is not finite; then find the operation that made it (FL620, FL621)."
    facts = ("clipping-spreads-nan", "inf-means-skip-not-clip")

    def says(self, entry: dict[str, Any]) -> str:
        return f"Clipping met a gradient norm of {entry.get('norm')} at update {entry.get('step')} and spread it to every gradient it was given, so the whole update is lost. Find where the value comes from, or pass error_if_nonfinite=True."
