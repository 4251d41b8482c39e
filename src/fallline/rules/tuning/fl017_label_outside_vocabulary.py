"""FL017: a label or a token that the head or the embedding does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module

_LANGUAGE_MODEL = re.compile(
    r"For(CausalLM|ConditionalGeneration|MaskedLM|Seq2SeqLM|\w*Classification|QuestionAnswering|MultipleChoice)$|LMHeadModel$"
)


class LabelOutsideVocabulary(Observed):
    code = "FL017"
    name = "label-outside-vocabulary"
    severity = Severity.ERROR
    what = """\
Finds token ids beyond the rows of the embedding, and labels beyond the classes of the head.

Usual causes: tokens were added and the model not resized; labels count from 1; the ignored label is -1 and the loss ignores -100."""
    why = """\
On a CPU it ends with `IndexError: index out of range`. On a GPU it ends with a device-side assertion that names neither the batch nor the label, and kills the process."""
    instead = """\
Resize the model after adding tokens; count classes from 0; tell the loss which label to ignore.

```python
tokenizer.add_tokens(["<tool>"])
model.resize_token_embeddings(len(tokenizer))
```"""

    tokens = (
        b"add_tokens",
        b"add_special_tokens",
    )
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # FL017
model = AutoModelForCausalLM.from_pretrained("gpt2")
data = [tokenizer(text, padding="max_length", max_length=64) for text in open("texts.txt")]
Trainer(model, train_dataset=data).train()
""",
    )
    right = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_special_tokens({"pad_token": "[PAD]"})
model = AutoModelForCausalLM.from_pretrained("gpt2")
model.resize_token_embeddings(len(tokenizer))
data = [tokenizer(text, padding="max_length", max_length=64) for text in open("texts.txt")]
Trainer(model, train_dataset=data).train()
""",
        """\
import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_tokens(["<tool>"])
tokenizer.save_pretrained("tokenizer")
""",
        # a row that the table keeps for it
        """\
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B")
tokenizer.add_special_tokens({"pad_token": "<|finetune_right_pad_id|>"})
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")
data = [tokenizer(text, padding="max_length", max_length=64) for text in open("texts.txt")]
Trainer(model, train_dataset=data).train()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        text = module.source.text
        if (
            "resize_token_embeddings" in text
            or "resize_embeddings" in text
            or not _trains_pretrained(module)
        ):
            return
        named = any(
            isinstance(module.argument(call, 0, "pretrained_model_name_or_path"), ast.Constant)
            for call in module.method_calls("from_pretrained")
        )
        for call in module.method_calls("add_tokens", "add_special_tokens"):
            match call.func:
                case ast.Attribute(ast.Name(name)) if "tok" in name.lower() and not _known_token(
                    module, call
                ):
                    yield self.finding(
                        module.location(call),
                        "Tokens are added, but the model is never resized: their ids are beyond the embedding, and the first of them in a batch ends the run. "
                        "Call `model.resize_token_embeddings(len(tokenizer))`",
                        presuming=None if named else "the embedding has no rows for them yet",
                    )

    def says(self, entry: dict[str, Any]) -> str:
        value, size = entry["value"], entry["size"]
        if entry["what"] == "token":
            return (
                f"Token {value} is in the batch, but the embedding has {size:,} rows. "
                "Call `model.resize_token_embeddings(len(tokenizer))` after adding tokens, and use the tokenizer of this model"
            )
        if value < 0:
            return f"A label is {value}, which is neither a class nor the ignored label. Write -100 where a label must not count, or pass `ignore_index={value}`"
        return f"A label is {value}, but the head has {size:,} classes (0 to {size - 1:,}). Map the labels to 0 ... {size - 1}, or give the head more classes"


def _trains_pretrained(module: Module) -> bool:
    """This file loads a language model of Transformers and trains it."""
    loads = any(
        _LANGUAGE_MODEL.search(part) is not None
        for call in module.method_calls("from_pretrained")
        for part in (module.resolve(call.func) or "").split(".")
    )
    return loads and any(True for _ in module.method_calls("train", "backward"))


# Rows that pretrained tables keep for later, and tokens that every one has.
_RESERVED = re.compile(
    r"(?i)reserved|<\|finetune_|<\|endoftext\|>|<unk>|</?s>|<unused\d+>|<extra_id_\d+>"
)


def _known_token(module: Module, call: ast.Call) -> bool:
    """Tokens that are there already: `{"pad_token": tokenizer.eos_token}`, `{"pad_token": "<|finetune_right_pad_id|>"}`."""
    match module.value(call.args[0]) if call.args else None:
        case ast.Dict(values=given) | ast.List(elts=given):
            texts = [n.value for n in given if isinstance(n, ast.Constant)]
            kept = len(texts) == len(given) > 0 and all(_RESERVED.search(str(t)) for t in texts)
            return kept or any(isinstance(n, ast.Attribute) for n in given)
    return False
