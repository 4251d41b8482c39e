"""FL020: truncation removes all that is learned of many samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module


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

    tokens = (b"max_prompt_length",)
    wrong = (
        """\
from trl import DPOConfig, DPOTrainer

config = DPOConfig(max_length=512, max_prompt_length=512)  # FL020
DPOTrainer("gpt2", args=config, train_dataset=data).train()
""",
    )
    right = (
        """\
from trl import DPOConfig, DPOTrainer

config = DPOConfig(max_length=1024, max_prompt_length=512)
DPOTrainer("gpt2", args=config, train_dataset=data).train()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.all(ast.Call):
            prompt = module.argument(call, None, "max_prompt_length")
            whole = module.argument(call, None, "max_length")
            if prompt is None or whole is None or module.has_star(call):
                continue
            longest, room = module.number(prompt), module.number(whole)
            if longest is not None and room is not None and longest >= room:
                yield self.finding(
                    module.location(call),
                    f"A prompt may be {longest:g} tokens long and the whole sample {room:g}, so a long prompt leaves no room for its answer and the sample teaches nothing. "
                    "Raise `max_length`, or lower `max_prompt_length`",
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"{entry['lost']} of {entry['samples']} samples have no label left: they were cut at {entry['length']:,} tokens, before their answer. "
            "Raise the maximum length, cut the prompt instead, or drop these samples"
        )
