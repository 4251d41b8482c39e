"""FL622 parameter-nonfinite: parameters were NaN or Inf before the forward pass."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class ParameterNonfinite(Observed):
    code = "FL622"
    name = "parameter-nonfinite"
    severity = Severity.ERROR
    yields_to = ("FL620", "FL621", "FL623")
    what = "A parameter (or a buffer such as BatchNorm's running statistics) was NaN or Inf before the forward pass; the finding names the update that made it so."
    why = "The loss, the data and the code of the forward pass are then not the cause: whatever is computed with that parameter is NaN, for ever."
    instead = (
        "Go back to a checkpoint from before the named update, and look at what it applied: its learning rate, its gradient norm, its "
        "loss scale. `fallline run` holds back non-finite gradients that its guard sees, but not a finite gradient times a huge learning rate. "
        "If no step made it, look at what writes parameters by hand: an average copied into the model, decay or clipping of weights, a "
        "checkpoint that was loaded."
    )

    def says(self, entry: dict[str, Any]) -> str:
        name = entry.get("parameter") or "a parameter"
        jump = entry.get("learning_rate")
        cause = (
            f" The learning rate went from {jump['from']:g} to {jump['to']:g} at update {jump['update']}."
            if jump
            else ""
        )
        if entry.get("op") == "init":
            return f"{name} was not finite even before the first update: it was created or loaded that way."
        if entry.get("between"):
            return f"{_between(name, entry)}{cause}"
        if "eps" in entry:
            cause += (
                " Gradients and learning rate of that step were ordinary: the optimizer's own division made it "
                f"(eps = {entry['eps']:g}, too small for a gradient of zero in this type)."
            )
        return f"{name} is not finite since update {entry.get('step')}; everything computed with it is lost.{cause}"


def _between(name: str, entry: dict[str, Any]) -> str:
    """It was written by hand after a step, or perhaps by that step."""
    last, noticed = entry["between"]
    lines = entry.get("lines") or []
    where = ", ".join(lines[:3])
    if entry.get("op") == "step":
        besides = f", or {where} after it" if lines else ", or something after it"
        return f"{name} is not finite before update {noticed}: the step of update {last} made it so{besides}."
    known = f"{name} is not finite before update {noticed}, and the step of update {last} did not make it so"
    if not lines:
        return f"{known}: something wrote it between the two."
    some = (
        "this line, which writes" if len(lines) == 1 else f"one of the lines that write ({where})"
    )
    return f"{known}: look at {some} parameters in between."
