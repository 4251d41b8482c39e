"""FL015: a packed sample sees, or predicts across the border to, its neighbour."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.rules._observed import Observed
from fallline.rules.tuning._causal import causal_calls, plain, same
from fallline.syntax import Module


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

    tokens = (b"position_ids",)
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for samples in data:
    input_ids = torch.cat(samples)[None]
    position_ids = torch.cat([torch.arange(len(s)) for s in samples])[None]
    loss = model(input_ids=input_ids, position_ids=position_ids, labels=input_ids, use_cache=False).loss  # FL015
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    right = (
        """\
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for samples in data:
    input_ids = torch.cat(samples)[None]
    position_ids = torch.cat([torch.arange(len(s)) for s in samples])[None]
    labels = input_ids.masked_fill(position_ids == 0, -100)
    loss = model(input_ids=input_ids, position_ids=position_ids, labels=labels, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in causal_calls(module):
            labels = module.argument(call, None, "labels")
            tokens = module.argument(call, 0, "input_ids")
            positions = module.argument(call, None, "position_ids")
            if labels is None or tokens is None or positions is None:
                continue
            if _restarts(module, positions) and same(module, plain(module, labels), tokens):
                yield self.finding(
                    module.location(call),
                    "Several samples are packed into one row, and the labels are the tokens themselves: the first token of each sample is learned as the continuation of the one before. "
                    "Set its label to -100: `input_ids.masked_fill(position_ids == 0, -100)`",
                )

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


def _restarts(module: Module, positions: ast.expr) -> bool:
    """`torch.cat([torch.arange(len(s)) for s in samples])`: they begin again with each sample."""
    made = module.value(positions)
    while True:
        match made:
            case (
                ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=ast.Call() as inner))
            ):
                made = inner
            case _:
                break
    match made:
        case ast.Call(args=[ast.ListComp(elt=ast.Call() as each), *_]):
            joined = module.resolve(made.func) in ("torch.cat", "torch.concat", "torch.hstack")
            return joined and last_name(each) == "arange"
    return False
