"""FL621 gradient-nonfinite: the loss is finite, a gradient is not."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed, guarded, ranges, when


class GradientNonfinite(Observed):
    code = "FL621"
    name = "gradient-nonfinite"
    severity = Severity.ERROR
    yields_to = ("FL620", "FL623")
    what = "The loss was finite and a gradient was not; the finding names the forward operation whose backward made it."
    why = (
        "Some operations have a value where they have no derivative: `sqrt` and powers below one at zero, `log` in the branch that `where` "
        "drops, the second derivative of a norm at zero. The loss looks healthy, and the step that follows turns parameters into NaN."
    )
    instead = (
        "Keep the input of the named operation away from the point where its derivative is infinite: `sqrt(x.clamp_min(1e-12))`, or "
        "`where` on the input as well as on the result."
    )

    def says(self, entry: dict[str, Any]) -> str:
        return self._message(entry) + guarded(entry)

    @staticmethod
    def _message(entry: dict[str, Any]) -> str:
        first = entry.get("parameter")
        reached = f" It reached the gradient of {first}." if first else ""
        if not entry.get("op"):
            missing = entry.get("missing", "nothing could be run again")
            return f"A gradient is not finite {when(entry)} although the loss is. Which operation made it could not be found: {missing}.{reached}"
        inside = f" in module {entry['module']}" if entry.get("module") else ""
        given = ranges(entry)
        if entry.get("hook"):
            return (
                f"The loss is finite {when(entry)}, and the backward hook {entry['hook']}{inside} makes a finite gradient "
                f"non-finite: {entry['op']}{f' ({given})' if given else ''}.{reached}"
            )
        return (
            f"The loss is finite {when(entry)} and the backward of {entry['op']}{inside} is not"
            f"{f' ({given})' if given else ''}.{reached}"
        )
