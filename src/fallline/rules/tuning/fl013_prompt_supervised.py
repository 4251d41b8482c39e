"""FL013: the question counts in the loss like the answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module


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

    tokens = (b"labels",)
    wrong = (
        """\
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
PROMPT = "### Instruction:\\n{question}\\n\\n### Response:\\n{answer}"


def tokenize(sample):
    encoded = tokenizer(PROMPT.format(**sample) + tokenizer.eos_token)
    encoded["labels"] = encoded["input_ids"].copy()  # FL013
    return encoded
""",
    )
    right = (
        """\
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
PROMPT = "### Instruction:\\n{question}\\n\\n### Response:\\n"


def tokenize(sample):
    encoded = tokenizer(PROMPT.format(**sample) + sample["answer"] + tokenizer.eos_token)
    start = len(tokenizer(PROMPT.format(**sample))["input_ids"])
    encoded["labels"] = [-100] * start + encoded["input_ids"][start:]
    return encoded
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for statement in _copies_of_both(module):
            yield self.finding(module.location(statement), _SAYS)
        if not _has_instructions(module) or _CHOSEN.search(module.source.text):
            return
        for node in module.all(ast.Assign):
            match node:
                case ast.Assign([ast.Subscript(_, ast.Constant("labels"))], value):
                    if _copies_tokens(value):
                        yield self.finding(module.location(node), _SAYS)

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"The prompt is learned like the answer in {entry['samples']} of {entry['of']} samples. If only the answers matter, set the labels of the prompt to -100 "
            "(TRL: completion_only_loss or assistant_only_loss)"
        )


def _copies_of_both(module: Module) -> Iterator[ast.Assign]:
    """`labels = list(ids)` after `ids = prompt + answer`."""
    for node in module.all(ast.Assign) if module.source.spells("labels") else ():
        match node:
            case ast.Assign([ast.Name("labels")], ast.Call(ast.Name("list"), [copied])):
                pass
            case ast.Assign(
                [ast.Name("labels")], ast.Call(ast.Attribute(copied, "copy" | "clone"), [])
            ):
                pass
            case ast.Assign([ast.Name("labels")], ast.Subscript(copied, ast.Slice(None, None))):
                pass
            case _:
                continue
        made = values_of(module).through(
            copied, lambda n: n.value if isinstance(n, ast.Subscript) else None
        )
        again = [
            b for b in module.bindings("labels", module.scope(node)) if b is not node.targets[0]
        ]
        match made:
            case ast.BinOp(left, ast.Add(), right) if not again:
                asked, said = module.segment(left), module.segment(right)
                if _PROMPT.search(asked) and _REPLY.search(said) and not _changed(module, node):
                    yield node


_PROMPT = re.compile(r"(?i)prompt|instruction|question|source|context|user")
_REPLY = re.compile(r"(?i)answer|response|completion|output|target|reply|assistant")


def _changed(module: Module, copied: ast.Assign) -> bool:
    """`labels[:start] = ...` afterwards."""
    return any(
        isinstance(n.value, ast.Name)
        and n.value.id == "labels"
        and isinstance(n.ctx, ast.Store)
        and module.scope(n) is module.scope(copied)
        for n in module.all(ast.Subscript)
    )


_SAYS = (
    "The labels are a copy of all tokens, so the prompt is learned like the answer. "
    "If only the answers matter, set the labels of the prompt to -100"
)
# where a file masks anything, or has a switch for it, what is learned was chosen
_CHOSEN = re.compile(
    r"-100|IGNORE_INDEX|ignore_index|LABEL_PAD|train_on_inputs?\b|train_on_prompt|only_loss|CompletionOnly"
)
_ASKED = re.compile(r"###\s*(Instruction|Human|Question)\b|\[INST\]|<\|im_start\|>\s*user")
_ANSWERED = re.compile(r"###\s*(Response|Assistant|Answer)\b|\[/INST\]|<\|im_start\|>\s*assistant")


def _has_instructions(module: Module) -> bool:
    if not any(mark in module.source.text for mark in ("###", "[INST]", "<|im_start|>")):
        return False
    texts = [n.value for n in module.all(ast.Constant) if isinstance(n.value, str)]
    return any(map(_ASKED.search, texts)) and any(map(_ANSWERED.search, texts))


def _copies_tokens(value: ast.expr) -> bool:
    """`encoded["input_ids"].copy()`."""
    copied = value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if last_name(value) not in ("copy", "clone"):
            return False
        copied = value.func.value
    return isinstance(copied, ast.Subscript) and (
        isinstance(copied.slice, ast.Constant) and copied.slice.value == "input_ids"
    )
