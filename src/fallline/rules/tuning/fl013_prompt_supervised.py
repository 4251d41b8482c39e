"""FL013: the question counts in the loss like the answer."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class PromptSupervised(Observed):
    code = "FL013"
    name = "prompt-supervised"
    severity = Severity.INFO
    what = """\
Notes instruction data (chat turns, `### Instruction:`) whose prompts are learned like the answers."""
    why = """\
The model spends its capacity on writing questions; with long prompts and short answers most of the gradient is about the prompt.

It is a choice, not always a mistake: with little data, or with prompts as varied as the answers, training on everything can help."""
    instead = """\
Mask the prompt, or keep it on purpose.

- TRL: `completion_only_loss=True` with prompt and completion columns, or `assistant_only_loss=True` with messages.
- By hand: `labels[:, :prompt_length] = -100`."""

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"The prompt is learned like the answer in {entry['samples']} of {entry['of']} samples. If only the answers matter, set the labels of the prompt to -100 "
            "(TRL: completion_only_loss or assistant_only_loss)"
        )
