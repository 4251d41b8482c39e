"""FL026: training samples are in the evaluation set too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import written


class EvaluationLeaks(Observed):
    code = "FL026"
    name = "evaluation-leaks"
    severity = Severity.WARNING
    what = """\
Finds samples of the training set that occur in the evaluation set, by their content."""
    why = """\
The evaluation rewards memorising: its loss falls with the training loss, overfitting does not show, and the wrong checkpoint is chosen as the best."""
    instead = """\
Split once, before anything is duplicated or augmented, and remove duplicates over both parts.

```python
train, evaluation = torch.utils.data.random_split(dataset, [0.9, 0.1])
```"""

    tokens = (b"eval_dataset",)
    wrong = (
        """\
from transformers import AutoModelForCausalLM, Trainer

from texts import load

model = AutoModelForCausalLM.from_pretrained("gpt2")
data = load("train.jsonl")
trainer = Trainer(model, train_dataset=data, eval_dataset=data)  # FL026
trainer.train()
""",
        """\
from transformers import AutoModelForCausalLM, Trainer

from texts import load

model = AutoModelForCausalLM.from_pretrained("gpt2")
data = load("train.jsonl")
trainer = Trainer(model, train_dataset=data, eval_dataset=data.select(range(100)))  # FL026
trainer.train()
""",
    )
    right = (
        """\
from transformers import AutoModelForCausalLM, Trainer

from texts import load

model = AutoModelForCausalLM.from_pretrained("gpt2")
parts = load("train.jsonl").train_test_split(test_size=0.1)
trainer = Trainer(model, train_dataset=parts["train"], eval_dataset=parts["test"])
trainer.train()
""",
        """\
from transformers import AutoModelForCausalLM, Trainer

from texts import load

model = AutoModelForCausalLM.from_pretrained("gpt2")
data = load("train.jsonl")
trainer = Trainer(model, train_dataset=data.select(range(100, 1000)), eval_dataset=data.select(range(100)))
trainer.train()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if module.is_unit_test:
            return
        for call in module.all(ast.Call):
            train, kept = (
                module.argument(call, None, n) for n in ("train_dataset", "eval_dataset")
            )
            if train is None or kept is None or isinstance(kept, ast.Constant):
                continue
            whole, part = module.segment(train), module.segment(kept)
            if part == whole or _is_part(kept, whole):
                yield self.finding(
                    module.location(call),
                    f"`eval_dataset` is {'the training set itself' if part == whole else 'a part of the training set'}, so the evaluation rewards memorising. "
                    "Split the data once, and keep the parts apart",
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"{entry['common']:,} of {entry['evaluated']:,} evaluation samples are in the training set too, so the evaluation rewards memorising. "
            "Split once, and remove duplicates over both parts"
        )


def _is_part(node: ast.expr, whole: str) -> bool:
    """`data.select(...)`, `data[:100]` of the data that is all trained on."""
    match node:
        case ast.Call(ast.Attribute(base, "select" | "take" | "shard")):
            return written(base) == whole
        case ast.Subscript(base, ast.Slice()):
            return written(base) == whole
    return False
