"""FL012: labels are shifted by hand and again by the model, or by nobody."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class LabelsShiftedTwice(Measured):
    code = "FL012"
    name = "labels-shifted-twice"
    severity = Severity.ERROR
    what = """\
Finds labels that do not belong to the next token: they are shifted by hand and once more inside the model, or never.

Transformers' language models shift the labels they are given. A loop that computes the loss itself has to shift once."""
    why = """\
Shifted twice, the model learns to predict the token after the next one, and generates text that skips every other word. Not shifted, it learns to copy its input: the loss falls to almost zero and the model is useless.

Both look like training: the loss falls."""
    instead = """\
Hand the tokens over as labels and let the model shift, or shift once yourself.

```python
loss = causal_lm(input_ids=ids, labels=ids).loss  # the model shifts
logits = causal_lm(input_ids=ids).logits[:, :-1]  # or you do
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
```"""

    def says(self, entry: dict[str, Any]) -> str:
        if entry["shift"] == "twice":
            return (
                "The labels are shifted twice: each position learns the token after the next one. "
                "Transformers' models shift the labels themselves, so pass `labels=input_ids` without shifting them"
            )
        return (
            "The labels are not shifted: each position learns to repeat the token it just read, so the loss falls to zero and nothing is learned. "
            "Compare `logits[:, :-1]` with `labels[:, 1:]`"
        )
