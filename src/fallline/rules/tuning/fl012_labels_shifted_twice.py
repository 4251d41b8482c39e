"""FL012: labels are shifted by hand and again by the model, or by nobody."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.rules.tuning._causal import causal_calls, plain, same, slice_of
from fallline.rules.tuning._shifted import (
    handed_over_shifted,
    masked_one_too_far,
    shifted_elsewhere,
    shifted_for_a_loss_that_shifts,
    stored_shifted,
)
from fallline.syntax import Module


class LabelsShiftedTwice(Observed):
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

    tokens = (
        b"CausalLM",
        b"LMHeadModel",
        b"DoubleHeads",
        b"label",
        b"targets[",
    )
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids[:, :-1], labels=ids[:, 1:]).loss  # FL012
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
import torch
from torch.nn import functional as F
from transformers import GPT2LMHeadModel

model = GPT2LMHeadModel.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    logits = model(ids).logits
    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), ids.view(-1))  # FL012
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    right = (
        """\
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids, labels=ids).loss
    logits = model(ids).logits[:, :-1]
    loss = loss + F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    inputs, targets = ids[:, :-1], ids[:, 1:]
    again = model(inputs).logits
    loss = loss + F.cross_entropy(again.flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in causal_calls(module):
            labels = module.argument(call, None, "labels")
            tokens = module.argument(call, 0, "input_ids")
            if labels is None or tokens is None:
                continue
            shifted, cut = slice_of(module, labels), slice_of(module, tokens)
            if shifted is not None and cut is not None and (shifted[1], cut[1]) == ("1:", ":-1"):
                yield self.finding(module.location(call), self.says({"shift": "twice"}))
        for call in module.calls("torch.nn.functional.cross_entropy"):
            if len(call.args) >= 2 and _compares_with_input(module, call.args[0], call.args[1]):
                yield self.finding(module.location(call), self.says({"shift": "never"}))

        for statement in (*handed_over_shifted(module), *stored_shifted(module)):
            yield self.finding(module.location(statement), self.says({"shift": "twice"}))
        for call in shifted_elsewhere(module):
            yield self.finding(
                module.location(call),
                "The labels are not shifted here, but another call of the same loss in this file shifts them, so the two numbers cannot be compared. "
                "Compare `logits[:, :-1]` with `labels[:, 1:]` in both",
                severity=Severity.WARNING,
            )
        for place in shifted_for_a_loss_that_shifts(module):
            yield self.finding(
                module.location(place),
                "The labels are shifted here and again by `self.loss_function`, which shifts them for this kind of model. Pass the labels as they are, or what is already shifted as `shift_labels`",
            )
        for statement in masked_one_too_far(module):
            yield self.finding(
                module.location(statement),
                self.says({"shift": "masked"}),
                severity=Severity.WARNING,
            )

    def says(self, entry: dict[str, Any]) -> str:
        if entry["shift"] == "twice":
            return (
                "The labels are shifted twice: each position learns the token after the next one. "
                "Transformers' models shift the labels themselves, so pass `labels=input_ids` without shifting them"
            )
        if entry["shift"] == "masked":
            return (
                "These labels are shifted by one, so masking as many of them as the prompt is long also removes the first token of the answer from the loss. "
                "Mask one label fewer"
            )
        return (
            "The labels are not shifted: each position learns to repeat the token it just read, so the loss falls to zero and nothing is learned. "
            "Compare `logits[:, :-1]` with `labels[:, 1:]`"
        )


def _compares_with_input(module: Module, predicted: ast.expr, target: ast.expr) -> bool:
    """`cross_entropy(model(ids).logits, ids)`: nothing is cut off either of them."""
    logits = module.value(plain(module, predicted))
    match logits:
        case ast.Attribute(ast.Call() as call, "logits"):
            tokens = module.argument(call, 0, "input_ids")
            known = any(call is c for c in causal_calls(module))
            return known and tokens is not None and same(module, plain(module, target), tokens)
    return False
