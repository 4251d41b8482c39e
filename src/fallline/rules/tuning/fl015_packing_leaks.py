"""FL015: a packed sample sees, or predicts across the border to, its neighbour."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class PackingLeaks(Observed):
    code = "FL015"
    name = "packing-leaks"
    severity = Severity.WARNING
    what = """\
Finds rows with several packed samples that are not kept apart: tokens attend to the sample before, or its last token is trained to predict the first token of the next one.

Measured: the tokens of one sample are changed, and the logits of another one must not change."""
    why = """\
Every sample is trained with a context of unrelated text that it will not have later, and the first tokens of samples are learned as continuations of something else.

Some recipes for pre-training do this on purpose. Where positions restart at each sample, it was not intended."""
    instead = """\
Use an attention that knows the borders, and no label on the first token of a sample.

- Transformers: pass `position_ids` that restart, no `attention_mask`, and `use_cache=False`: with a cache, Transformers 5.22 does not look for packed samples (measured).
- `DataCollatorWithFlattening` (or TRL's `padding_free=True`) writes -100 at each border."""

    def says(self, entry: dict[str, Any]) -> str:
        if entry["why"] == "label":
            return (
                f"{entry['crossed']} of {entry['borders']} packed samples are predicted from the end of the sample before: the label of their first token counts. "
                "Set it to -100"
            )
        return (
            "Packed samples see each other: changing the tokens of the first one changes the logits of the last one, although the positions restart between them. "
            "Pass no attention mask of ones, and `use_cache=False`: with a cache Transformers does not look for packed samples"
        )
