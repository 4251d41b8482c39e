"""FL018: tokens were added and their embeddings cannot learn."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class NewTokensFrozen(Measured):
    code = "FL018"
    name = "new-tokens-frozen"
    severity = Severity.WARNING
    what = """\
Finds embeddings that were resized for new tokens while nothing trains the new rows: LoRA freezes the base model, embeddings included."""
    why = """\
The new tokens keep the average embedding that resizing gave them, so the model can neither read nor write them. With LoRA the loss still falls, because everything else adapts."""
    instead = """\
Train the new rows, or the whole embedding.

```python
LoraConfig(trainable_token_indices=tokenizer.convert_tokens_to_ids(["<tool>"]))   # only the new rows
LoraConfig(modules_to_save=["embed_tokens", "lm_head"])                           # all rows: much memory
```"""

    def says(self, entry: dict[str, Any]) -> str:
        frozen = " and ".join(f"the {name}" for name in entry["frozen"])
        half = (
            " Input and output embeddings are no longer tied: only one of them learns."
            if entry.get("untied")
            else ""
        )
        return (
            f"The vocabulary grew from {entry['before']:,} to {entry['after']:,} rows, but {frozen} cannot learn, so the {entry['rows']:,} new tokens keep their "
            f"first values.{half} Pass `trainable_token_indices` or `modules_to_save` to LoraConfig"
        )
