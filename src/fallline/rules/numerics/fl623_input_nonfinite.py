"""FL623 input-nonfinite: the batch itself holds NaN or Inf."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed, when


class InputNonfinite(Observed):
    code = "FL623"
    name = "input-nonfinite"
    severity = Severity.ERROR
    what = "A NaN or Inf in the batch reached the loss; the finding names the tensor and the index of its first bad element."
    why = "No change of the model or of the optimizer helps: one bad row makes the loss of its whole batch, and every gradient, NaN."
    instead = "Find the sample in the data set by the index given. Clean the data, or mask the values out with `torch.where` before anything is computed with them."

    def says(self, entry: dict[str, Any]) -> str:
        name = entry.get("tensor") or "an input"
        index = f"[{', '.join(map(str, entry['index']))}]" if entry.get("index") else ""
        met = f"; the first operation that met it is {entry['op']}" if entry.get("op") else ""
        reached = f"the gradient of {entry['parameter']}" if entry.get("parameter") else "the loss"
        return f"{name} holds a non-finite value at {index or 'some index'} {when(entry)}, and it reached {reached}{met}."
