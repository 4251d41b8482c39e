"""FL017: a label or a token that the head or the embedding does not have."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class LabelOutsideVocabulary(Measured):
    code = "FL017"
    name = "label-outside-vocabulary"
    severity = Severity.ERROR
    what = """\
Finds token ids beyond the rows of the embedding, and labels beyond the classes of the head.

Usual causes: tokens were added and the model not resized; labels count from 1; the ignored label is -1 and the loss ignores -100."""
    why = """\
On a CPU it ends with `IndexError: index out of range`. On a GPU it ends with a device-side assertion that names neither the batch nor the label, and kills the process."""
    instead = """\
Resize the model after adding tokens; count classes from 0; tell the loss which label to ignore.

```python
tokenizer.add_tokens(["<tool>"])
model.resize_token_embeddings(len(tokenizer))
```"""

    def says(self, entry: dict[str, Any]) -> str:
        value, size = entry["value"], entry["size"]
        if entry["what"] == "token":
            return (
                f"Token {value} is in the batch, but the embedding has {size:,} rows. "
                "Call `model.resize_token_embeddings(len(tokenizer))` after adding tokens, and use the tokenizer of this model"
            )
        if value < 0:
            return f"A label is {value}, which is neither a class nor the ignored label. Write -100 where a label shall not count, or pass `ignore_index={value}`"
        return f"A label is {value}, but the head has {size:,} classes (0 to {size - 1:,}). Map the labels to 0 ... {size - 1}, or give the head more classes"
