"""FL011: a batch without a single label that counts."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class NothingSupervised(Observed):
    code = "FL011"
    name = "nothing-supervised"
    severity = Severity.ERROR
    what = """\
Finds batches in which every label is -100 (or the `ignore_index` of the loss)."""
    why = """\
The mean over no labels is NaN in torch and 0 where a trainer guards the division; either way the batch teaches nothing.

Typical causes: a response template that the tokenizer splits differently inside the text, a chat template without `{% generation %}` whose assistant mask is all zeros, or answers that were all cut off."""
    instead = """\
Print one decoded batch with its labels, and correct the mask.

- `fallline measure data train.py` shows which tokens are learned.
- With TRL, `assistant_only_loss=True` needs a chat template with `{% generation %}` around the assistant's part."""

    def says(self, entry: dict[str, Any]) -> str:
        empty, batches = entry["empty"], entry["batches"]
        which = "No batch has" if empty == batches else f"{empty} of {batches} batches do not have"
        return (
            f"{which} a single label that counts: every one is -100, so the loss is NaN or 0 and nothing is learned. "
            "Correct the mask that decides which tokens are learned: a response template that never matches, or an assistant mask of zeros"
        )
