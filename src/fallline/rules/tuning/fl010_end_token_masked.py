"""FL010: the end of the text is never a target, because it is also the padding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.rules._observed import Observed
from fallline.syntax import Module


class EndTokenMasked(Observed):
    code = "FL010"
    name = "end-token-masked"
    severity = Severity.WARNING
    what = """\
Finds runs in which the end-of-text token is in the data and never counts in the loss.

The usual cause: `tokenizer.pad_token = tokenizer.eos_token`, and a collator that sets every padding token's label to -100."""
    why = """\
The model never learns to stop: after training it answers and then continues until the length limit cuts it off.

The loss does not show it, because the token that would is not counted."""
    instead = """\
Use a padding token that is not the end token, or mask by the attention mask instead of by the token.

```python
tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
model.resize_token_embeddings(len(tokenizer))
labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
```"""

    tokens = (b"pad_token",)
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained("gpt2")
data = [tokenizer(text + tokenizer.eos_token) for text in open("texts.txt")]
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # FL010
Trainer(model, train_dataset=data, data_collator=collator).train()
""",
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.pad_token_id = tokenizer.eos_token_id
model = AutoModelForCausalLM.from_pretrained("gpt2")


def collate(texts):
    batch = tokenizer([t + tokenizer.eos_token for t in texts], padding=True, return_tensors="pt")
    labels = batch["input_ids"].clone()
    labels[labels == tokenizer.pad_token_id] = -100  # FL010
    return {**batch, "labels": labels}
""",
    )
    right = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
model = AutoModelForCausalLM.from_pretrained("gpt2")
model.resize_token_embeddings(len(tokenizer))
data = [tokenizer(text + tokenizer.eos_token) for text in open("texts.txt")]
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
Trainer(model, train_dataset=data, data_collator=collator).train()
""",
        """\
import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.pad_token = tokenizer.eos_token


def collate(texts):
    batch = tokenizer([t + tokenizer.eos_token for t in texts], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {**batch, "labels": labels}
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if not any(map(module.source.spells, ("pad_token", "pad_token_id"))):
            return
        if not any(_pads_with_end(n) for n in module.all(ast.Assign)):
            return
        # without an end token in the texts nothing is masked that counts: then it is only worth a note
        severity = None if _appends_end(module) else Severity.INFO
        for node in [*_masking_collators(module), *_masking_assignments(module)]:
            yield self.finding(
                module.location(node),
                "The padding token is the end token, and this sets the label of every padding token to -100, so the end of a text is never learned and the "
                "model does not learn to stop. Use a separate padding token, or mask labels by the attention mask",
                severity=severity,
            )

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
                "Use a separate padding token, or mask labels by the attention mask"
            )
        return f"{token} ends {seen}, but its label is -100, so the model does not learn to stop. Let the mask of the answer include the token that ends it"


def _pads_with_end(node: ast.Assign) -> bool:
    """`tokenizer.pad_token = tokenizer.eos_token`."""
    match node:
        case ast.Assign(
            [ast.Attribute(attr="pad_token" | "pad_token_id")],
            ast.Attribute(attr="eos_token" | "eos_token_id"),
        ):
            return True
    return False


def _appends_end(module: Module) -> bool:
    """The end token is added to texts: `text + tokenizer.eos_token`, an f-string, `add_eos_token=True`."""
    for node in module.all(ast.Attribute):
        if node.attr in ("eos_token", "eos_token_id") and isinstance(
            module.parent(node), ast.BinOp | ast.FormattedValue | ast.List
        ):
            return True
    return any(k.arg == "add_eos_token" for k in module.all(ast.keyword))


def _masking_collators(module: Module) -> Iterator[ast.Call]:
    for call in module.calls("transformers.DataCollatorForLanguageModeling"):
        mlm = module.argument(call, 1, "mlm")
        if mlm is not None and module.constant(mlm) is False:
            yield call


def _masking_assignments(module: Module) -> Iterator[ast.Assign]:
    """`labels[labels == tokenizer.pad_token_id] = -100`."""
    for node in module.all(ast.Assign):
        match node:
            case ast.Assign(
                [ast.Subscript(slice=ast.Compare(ops=[ast.Eq()], comparators=[against]))], value
            ):
                if (
                    last_name(against) in ("pad_token_id", "eos_token_id")
                    and module.constant(value) == -100
                ):
                    yield node
