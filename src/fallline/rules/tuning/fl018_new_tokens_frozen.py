"""FL018: tokens were added and their embeddings cannot learn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import written


class NewTokensFrozen(Observed):
    code = "FL018"
    name = "new-tokens-frozen"
    severity = Severity.WARNING
    what = """\
Finds embeddings that were resized for new tokens while nothing trains the new rows: LoRA freezes the base model, embeddings included."""
    why = """\
The new tokens keep the average embedding that resizing gave them, so the model can neither read nor write them. With LoRA the loss still falls, because everything else adapts."""
    instead = """\
Train the new rows, or the whole embedding.

```python
LoraConfig(trainable_token_indices=tokenizer.convert_tokens_to_ids(["<tool>"]))   # only the new rows
LoraConfig(modules_to_save=["embed_tokens", "lm_head"])                           # all rows: much memory
```"""

    tokens = (b"resize_token_embeddings",)
    wrong = (
        """\
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_tokens(["<tool>"])
model = AutoModelForCausalLM.from_pretrained("gpt2")
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM"))  # FL018
""",
    )
    right = (
        """\
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_tokens(["<tool>"])
model = AutoModelForCausalLM.from_pretrained("gpt2")
model.resize_token_embeddings(len(tokenizer))
config = LoraConfig(r=8, task_type="CAUSAL_LM", modules_to_save=["embed_tokens", "lm_head"])
model = get_peft_model(model, config)
""",
        """\
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

# a padding token is never a target: its row need not learn
tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.add_special_tokens({"pad_token": "[PAD]"})
model = AutoModelForCausalLM.from_pretrained("gpt2")
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(model, LoraConfig(r=8, task_type="CAUSAL_LM"))
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if not any(True for _ in module.method_calls("resize_token_embeddings")) or not _adds_words(
            module
        ):
            return
        for call in module.calls("peft.LoraConfig"):
            named = {k.arg for k in call.keywords}
            targets = module.argument(call, None, "target_modules")
            if (
                None in named
                or named & {"modules_to_save", "trainable_token_indices"}
                or _reaches_embedding(targets)
            ):
                continue
            yield self.finding(
                module.location(call),
                "The vocabulary grew, but this LoRA trains neither the embedding nor the head, so the new tokens keep their first values. "
                "Pass `trainable_token_indices` or `modules_to_save`",
            )

    def says(self, entry: dict[str, Any]) -> str:
        frozen = " and ".join(f"the {name}" for name in entry["frozen"])
        half = (
            " Input and output embeddings are no longer tied: only one of them learns."
            if entry.get("untied")
            else ""
        )
        return (
            f"The vocabulary grew from {entry['before']:,} to {entry['after']:,} rows, but {frozen} cannot learn, so the {entry['rows']:,} new tokens keep their "
            f"first values.{half} Pass `trainable_token_indices` or `modules_to_save` to LoraConfig"
        )


def _adds_words(module: Module) -> bool:
    """Tokens that the model shall read or write; a padding token alone is not one."""
    if any(True for _ in module.method_calls("add_tokens")):
        return True
    for call in module.method_calls("add_special_tokens"):
        given = module.value(call.args[0]) if call.args else None
        if isinstance(given, ast.Dict):
            keys = {module.constant(k) for k in given.keys if k is not None}
            if keys - {"pad_token"}:
                return True
    return False


def _reaches_embedding(targets: ast.expr | None) -> bool:
    """`target_modules` that is not a list of names in view, or that holds the embedding."""
    if targets is None:
        return False
    if isinstance(targets, ast.List | ast.Tuple):
        return any("embed" in written(t) or "wte" in written(t) for t in targets.elts)
    return not (isinstance(targets, ast.Constant) and targets.value == "all-linear")
