"""FL011: a batch without a single label that counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below


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

    tokens = (
        b"-100",
        b"assistant_only_loss",
    )
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for text in open("texts.txt"):
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    labels = torch.full_like(ids, -100)  # FL011
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"
config = SFTConfig(assistant_only_loss=True)  # FL011
SFTTrainer("gpt2", args=config, train_dataset=data, processing_class=tokenizer).train()
""",
    )
    right = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for prompt, answer in data:
    start = len(tokenizer(prompt)["input_ids"])
    ids = tokenizer(prompt + answer, return_tensors="pt")["input_ids"]
    labels = torch.full_like(ids, -100)
    labels[:, start:] = ids[:, start:]
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}{% endfor %}"
config = SFTConfig(assistant_only_loss=True)
SFTTrainer("gpt2", args=config, train_dataset=data, processing_class=tokenizer).train()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for made in _ignored_labels(module):
            yield self.finding(
                module.location(module.statement(made)),
                "Every label is -100 and none is set afterwards, so the loss is NaN or 0 and nothing is learned. "
                "Write the tokens of the answer into the labels",
            )
        for statement in _ignored_lists(module):
            yield self.finding(
                module.location(statement),
                "Every label is -100 and none is set afterwards, so the loss is NaN or 0 and nothing is learned. "
                "Write the tokens of the answer into the labels",
                severity=Severity.WARNING,
            )
        if _unmarked_template(module):
            for config in _masked_by_template(module):
                yield self.finding(
                    module.location(config),
                    "`assistant_only_loss` needs a chat template with `{% generation %}`, and the one in this file has none: the assistant's mask is all zeros, so nothing is learned. "
                    "Put `{% generation %}` and `{% endgeneration %}` around the assistant's part",
                )

    def says(self, entry: dict[str, Any]) -> str:
        empty, batches = entry["empty"], entry["batches"]
        which = "No batch has" if empty == batches else f"{empty} of {batches} batches do not have"
        return (
            f"{which} a single label that counts: every one is -100, so the loss is NaN or 0 and nothing is learned. "
            "Correct the mask that decides which tokens are learned: a response template that never matches, or an assistant mask of zeros"
        )


def _ignored_lists(module: Module) -> Iterator[ast.Assign]:
    """`labels = [-100] * len(ids)`, which is only cut, padded or handed on."""
    for product in module.all(ast.BinOp):
        match product, module.parent(product):
            case (
                ast.BinOp(ast.List([item]), ast.Mult()),
                ast.Assign([ast.Name(name) as target]) as statement,
            ) if module.number(item) == -100 and _LABELS.search(name):
                pass
            case _:
                continue
        scope = module.scope(statement)
        if scope is None or module.bindings(name, scope) != [target]:
            continue
        uses = [n for n in below(scope, ast.Name) if n.id == name and n is not target]
        if uses and all(_only_handed_on(module, use) for use in uses):
            yield statement


_LABELS = re.compile(r"(^|_)labels?$")


def _only_handed_on(module: Module, use: ast.Name) -> bool:
    """`return ids, labels[:512]`, `{"labels": labels}`, `torch.tensor(labels)`."""
    child: ast.AST = use
    for up in module.parents(use):
        match up:
            case ast.Return() | ast.Dict() | ast.Tuple():
                return True
            case ast.Subscript(value, ctx=ast.Load()) if value is child:
                pass
            case ast.Call(func) if (module.resolve(func) or "").startswith("torch."):
                pass
            case ast.keyword(arg="labels"):
                return True
            case _:
                return False
        child = up
    return False


def _ignored_labels(module: Module) -> Iterator[ast.Call]:
    """`labels = torch.full_like(ids, -100)` that goes into a model as it is."""
    for call in module.calls("torch.full_like", "torch.full"):
        if module.constant(module.argument(call, 1, "fill_value")) != -100:
            continue
        match module.parent(call):
            case ast.Assign([ast.Name(name)]) as statement:
                pass
            case _:
                continue
        uses = [n for n in module.all(ast.Name) if n.id == name and n is not statement.targets[0]]
        mine = [n for n in uses if module.scope(n) is module.scope(statement)]
        if len(mine) == 1 and _given_as_labels(module, mine[0]):
            yield call


def _given_as_labels(module: Module, name: ast.Name) -> bool:
    parent = module.parent(name)
    return isinstance(parent, ast.keyword) and parent.arg == "labels"


def _unmarked_template(module: Module) -> bool:
    """`tokenizer.chat_template = "..."`, written out in this file without marks, and no other."""
    templates = []
    for node in module.all(ast.Assign):
        match node:
            case ast.Assign([ast.Attribute(attr="chat_template")], value):
                templates.append(module.constant(module.value(value)))
    return bool(templates) and all(isinstance(t, str) and "generation" not in t for t in templates)


def _masked_by_template(module: Module) -> Iterator[ast.Call]:
    for call in module.calls("trl.SFTConfig"):
        asked = module.argument(call, None, "assistant_only_loss")
        if asked is not None and module.constant(asked) is True:
            yield call
