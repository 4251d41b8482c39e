"""FL620 loss-nonfinite: the loss is NaN or Inf before backward."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed, guarded, ranges, when


class LossNonfinite(Observed):
    code = "FL620"
    name = "loss-nonfinite"
    severity = Severity.ERROR
    yields_to = ("FL623",)
    what = "The loss was NaN or Inf before its backward; the finding names the first operation whose result was not finite."
    why = (
        "One step on a loss of NaN or of log(0) destroys the model: all parameters that it reaches become NaN. If a square overflowed, "
        "the gradient is still finite, and the step throws them far away instead. Lowering the learning rate or clipping hides the "
        "operation that caused it and does not change it."
    )
    instead = (
        "Look at the named operation and at the range of what went into it. Use the fused, stable form where there is one "
        "(`cross_entropy`, `binary_cross_entropy_with_logits`, `logsumexp`), or bound the input away from the pole with `clamp_min`."
    )
    references = ("https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",)

    def says(self, entry: dict[str, Any]) -> str:
        return self._message(entry) + guarded(entry)

    @staticmethod
    def _message(entry: dict[str, Any]) -> str:
        value = entry.get("value", "not finite")
        if not entry.get("op"):
            return f"The loss is {value} {when(entry)}. Which operation made it could not be found: {entry.get('missing', 'nothing could be run again')}."
        inside = f" in module {entry['module']}" if entry.get("module") else ""
        given = ranges(entry)
        cause = _rate(entry)
        return f"The loss is {value} {when(entry)}: the first non-finite result is that of {entry['op']}{inside}{f' ({given})' if given else ''}.{cause}"


def _rate(entry: dict[str, Any]) -> str:
    jump = entry.get("learning_rate")
    if not jump:
        return ""
    return f" The learning rate went from {jump['from']:g} to {jump['to']:g} at update {jump['update']}."
