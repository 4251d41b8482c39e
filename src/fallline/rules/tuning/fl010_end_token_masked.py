"""FL010: the end of the text is never a target, because it is also the padding."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class EndTokenMasked(Measured):
    code = "FL010"
    name = "end-token-masked"
    severity = Severity.WARNING
    what = """\
Finds runs in which the end-of-text token is in the data and never counts in the loss.

The usual cause: `tokenizer.pad_token = tokenizer.eos_token`, and a collator that sets every padding token's label to -100."""
    why = """\
The model never learns to stop: after training it answers and then goes on until the length limit cuts it off.

The loss shows nothing of it, because the token that would show it is not counted."""
    instead = """\
Use a padding token that is not the end token, or mask by the attention mask instead of by the token.

```python
tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
model.resize_token_embeddings(len(tokenizer))
labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
```"""

    def says(self, entry: dict[str, Any]) -> str:
        token, seen = entry["token"].strip(), f"{entry['samples']} of {entry['of']} samples"
        if entry["why"] == "absent":
            return (
                f"No answer ends with {token} in {seen}: the tokens that are learned stop without an end token, so the model never learns to stop. "
                "Append the end token to each answer before tokenizing it"
            )
        if entry["why"] == "padding":
            return (
                f"{token} ends {seen} and is never learned, because it is also the padding token and its labels are -100. The model does not learn to stop. "
                "Use a padding token of its own, or mask labels by the attention mask"
            )
        return f"{token} ends {seen}, but its label is -100, so the model does not learn to stop. Let the mask of the answer include the token that ends it"
