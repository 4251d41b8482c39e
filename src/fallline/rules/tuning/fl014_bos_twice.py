"""FL014: two begin-of-text tokens at the head of samples."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class BosTwice(Measured):
    code = "FL014"
    name = "bos-twice"
    severity = Severity.WARNING
    what = """\
Finds samples that begin with two begin-of-text tokens.

A chat template writes one, and the tokenizer adds another when the rendered text is tokenized."""
    why = """\
The model was never trained on two of them: Llama 3 and Gemma answer measurably worse. Training and inference then also differ, if only one of them doubles it."""
    instead = """\
Let one of the two write it.

```python
ids = tokenizer.apply_chat_template(messages, tokenize=True)
ids = tokenizer(text, add_special_tokens=False)["input_ids"]   # text is already rendered
```"""

    def says(self, entry: dict[str, Any]) -> str:
        token = entry["token"].strip()
        return (
            f"{entry['samples']} of {entry['of']} samples begin with {token} twice: the template writes one and the tokenizer adds another. "
            "Tokenize the rendered text with `add_special_tokens=False`"
        )
