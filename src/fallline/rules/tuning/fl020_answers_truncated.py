"""FL020: truncation removes all that is learned of many samples."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class AnswersTruncated(Observed):
    code = "FL020"
    name = "answers-truncated"
    severity = Severity.WARNING
    what = """\
Finds samples that were cut before their answer, so that none of their labels counts."""
    why = """\
These samples cost as much as others and teach nothing. Only samples with short prompts are left, so the model is trained on a different task from the one in the data set."""
    instead = """\
Raise the maximum length, cut the prompt instead of the answer, or drop the samples.

- `tokenizer.truncation_side = "left"`, if the prompt can lose its beginning.
- Filter: keep a sample only if a label is left."""

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"{entry['lost']} of {entry['samples']} samples have no label left: they were cut at {entry['length']:,} tokens, before their answer. "
            "Raise the maximum length, cut the prompt instead, or drop these samples"
        )
