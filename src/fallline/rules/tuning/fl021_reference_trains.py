"""FL021: a reference or teacher that is meant to be fixed is not."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class ReferenceTrains(Measured):
    code = "FL021"
    name = "reference-trains"
    severity = Severity.WARNING
    what = """\
Finds a reference, teacher or target model that gets gradients, or that runs with dropout."""
    why = """\
A reference with dropout gives a different answer each time, so the KL term or the distillation target is noise. Gradients that nobody uses cost the memory of a second model."""
    instead = """\
Put it into eval mode, take its gradients away, and call it without a graph.

```python
reference = copy.deepcopy(model).eval().requires_grad_(False)
with torch.no_grad():
    reference_logits = reference(ids).logits
```"""

    def says(self, entry: dict[str, Any]) -> str:
        if entry["why"] == "dropout":
            return f"A fixed copy of the model ({entry['model']}) runs in train mode, so its dropout changes what it says about the same tokens. Call `eval()` on it"
        return (
            f"{entry['model']} is in no optimizer, but it gets gradients: they cost the memory of a second model and change nothing. "
            "Call it under `torch.no_grad()` and freeze it with `requires_grad_(False)`"
        )
