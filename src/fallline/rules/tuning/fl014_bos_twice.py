"""FL014: two begin-of-text tokens at the head of samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import written


class BosTwice(Observed):
    code = "FL014"
    name = "bos-twice"
    severity = Severity.WARNING
    what = """\
Finds samples that begin with two begin-of-text tokens.

A chat template writes one, and the tokenizer adds another when the rendered text is tokenized."""
    why = """\
The model was never trained on two of them: Llama 3 and Gemma answer measurably worse. Training and inference then also differ, if only one of them doubles it."""
    instead = """\
Let one of the two write it.

```python
ids = tokenizer.apply_chat_template(messages, tokenize=True)
ids = tokenizer(text, add_special_tokens=False)["input_ids"]   # text is already rendered
```"""

    tokens = (
        b"bos_token",
        b"apply_chat_template",
    )
    wrong = (
        """\
import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B")
for text in open("texts.txt"):
    ids = tokenizer(tokenizer.bos_token + text)["input_ids"]  # FL014
""",
        """\
import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B-Instruct")


def encode(messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return tokenizer(text, return_tensors="pt")  # FL014
""",
    )
    right = (
        """\
import torch
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B-Instruct")


def encode(messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return tokenizer(text, return_tensors="pt", add_special_tokens=False)


ids = tokenizer(tokenizer.bos_token + "a text", add_special_tokens=False)["input_ids"]
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.all(ast.Call):
            tokenizer = written(call.func)
            if "tok" not in tokenizer.rpartition(".")[2].lower() or not call.args:
                continue
            if any(k.arg in (None, "add_special_tokens") for k in call.keywords):
                continue
            match _made(module, call.args[0]):
                case ast.BinOp(ast.Attribute(of, "bos_token"), ast.Add()) if (
                    written(of) == tokenizer
                ):
                    yield self.finding(
                        module.location(call),
                        "The text already begins with the begin token, and the tokenizer adds another one. Pass `add_special_tokens=False`",
                    )
                case ast.Call(ast.Attribute(of, "apply_chat_template")) if written(of) == tokenizer:
                    yield self.finding(
                        module.location(call),
                        "A rendered chat is tokenized with special tokens: where the template writes a begin token, the tokenizer adds another one. "
                        "Pass `add_special_tokens=False`",
                        severity=Severity.INFO,
                    )

        for joined in module.all(ast.BinOp):
            match joined:
                case ast.BinOp(ast.List([ast.Attribute(of, "bos_token_id")]), ast.Add(), rest):
                    source = _tokenized(module, rest)
                    if source is not None and written(source.func) == written(of):
                        yield self.finding(
                            module.location(joined),
                            "A begin token is put in front of tokens to which the tokenizer may have added one already. Pass `add_special_tokens=False` to the tokenizer",
                            severity=Severity.INFO,
                        )

    def says(self, entry: dict[str, Any]) -> str:
        token = entry["token"].strip()
        return (
            f"{entry['samples']} of {entry['of']} samples begin with {token} twice: the template writes one and the tokenizer adds another. "
            "Tokenize the rendered text with `add_special_tokens=False`"
        )


def _tokenized(module: Module, tokens: ast.expr) -> ast.Call | None:
    """The call behind `tokenizer(text)["input_ids"]`, where it adds what it adds by default."""
    made = values_of(module).through(
        tokens, lambda n: n.value if isinstance(n, ast.Subscript | ast.Attribute) else None
    )
    if isinstance(made, ast.Call) and not any(
        k.arg in (None, "add_special_tokens") for k in made.keywords
    ):
        return made
    return None


def _made(module: Module, text: ast.expr) -> ast.expr | ast.arg:
    """What a text stands for, through names and a function of this file that renders it."""
    made = values_of(module).origin(text)
    inner = values_of(module).result(made) if isinstance(made, ast.Call) else None
    return values_of(module).origin(inner) if inner is not None else made
