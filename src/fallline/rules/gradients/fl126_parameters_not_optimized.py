"""FL126 parameters-not-optimized: parameters receive gradients but belong to no optimizer."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed, parameters


class ParametersNotOptimized(Observed):
    code = "FL126"
    name = "parameters-not-optimized"
    severity = Severity.ERROR
    what = "Parameters received gradients update after update, belonged to no optimizer, and never changed."
    why = (
        "They stay at their random start while the rest of the model trains around them. It happens when a layer is added after the optimizer was built, "
        "when parameter groups are written by hand, or when the optimizer was given a different copy of the model."
    )
    instead = "Build the optimizer last, from all of `model.parameters()`; freeze what must not train with `requires_grad_(False)`, which also saves its gradients."

    def says(self, entry: dict[str, Any]) -> str:
        return f"{parameters(entry)} receive gradients, but no optimizer holds them, so they are never updated. Pass them to the optimizer."
