"""FL016: padding counts in the loss."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class PaddingSupervised(Measured):
    code = "FL016"
    name = "padding-supervised"
    severity = Severity.ERROR
    what = """\
Finds padding positions that count: they have a label, or they are in the number that the sum of the losses is divided by."""
    why = """\
The model learns to write padding: in a batch of short answers most of the loss is about it, falls fast and looks good. In the divisor, short samples make the gradient smaller than it should be."""
    instead = """\
Set the labels of padding to -100, and divide by the number of labels that count.

```python
labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
loss = (per_token * mask).sum() / mask.sum()
```"""

    def says(self, entry: dict[str, Any]) -> str:
        if entry["where"] == "divisor":
            return (
                "The loss is divided by all positions, padding too, so a batch with much padding has a smaller gradient. "
                f"Only {entry['share']:.0%} of them count. Divide by `mask.sum()`"
            )
        return (
            f"{entry['supervised']:,} padding positions count in the loss, {entry['share']:.0%} of all labels: the model learns to write padding. "
            "Set the labels to -100 where the attention mask is 0"
        )
