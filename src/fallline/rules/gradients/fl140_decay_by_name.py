"""FL140: parameters are left out of weight decay by names that this model does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.rules._observed import Observed, parameters
from fallline.syntax import Module

__all__ = ["DecayByName"]

# Classes of transformers whose norms are not called LayerNorm: layer_norm, ln_1, norm, input_layernorm.
_OTHER_NORMS = re.compile(
    r"AutoModelFor(CausalLM|Seq2SeqLM|SpeechSeq2Seq|Vision2Seq)$|^(T5|MT5|UMT5|Bart|MBart|GPT2|GPTNeo|GPTJ|OPT|Bloom|Llama|Mistral|Qwen|Gemma|Pegasus|"
    r"Marian|Whisper|Wav2Vec2|XLNet|ViT|CLIP)(?!Tokenizer|Config|Processor|Feature)\w*"
)
_NORM_NAMES = re.compile(r"layer_norm|layernorm|(^|[._])ln(_|\d|$|\.)|(^|\.)norm", re.IGNORECASE)


class DecayByName(Observed):
    code = "FL140"
    name = "decay-by-name"
    severity = Severity.INFO
    what = "Norm weights are left out of weight decay by the name `LayerNorm.weight`, and this model's norms have other names."
    why = (
        "The list was written for BERT. T5 and BART call them `layer_norm`, GPT-2 `ln_1`, Llama `input_layernorm`: no name matches, so all norm "
        "weights are decayed towards 0, which is not what the list says."
    )
    instead = (
        "Decide by shape instead of by name:\n\n"
        "```python\ndecayed = [p for p in model.parameters() if p.ndim >= 2]\nothers = [p for p in model.parameters() if p.ndim < 2]\n```"
    )
    tokens = (b"LayerNorm.weight", b"no_decay")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        lists: list[ast.List | ast.Tuple] = [*module.all(ast.List)]
        for names in lists + module.all(ast.Tuple):
            written = [
                e.value
                for e in names.elts
                if isinstance(e, ast.Constant) and isinstance(e.value, str)
            ]
            if "LayerNorm.weight" not in written or any(
                _NORM_NAMES.search(w) for w in written if not w.startswith("LayerNorm")
            ):
                continue
            model = _decayed_model(module, names)
            if model is not None:
                yield self.finding(
                    module.location(names),
                    f"Norm weights are exempt from weight decay by the name LayerNorm.weight, but the norms of {model} usually have other names, so all of them are decayed. Exempt parameters with fewer than two dimensions instead",
                    model=model,
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"One parameter group is exempt from weight decay, yet the norm weights {parameters(entry)} are in a group that is decayed. "
            "If they were meant to be exempt, their names do not match; exempt parameters with fewer than two dimensions instead"
        )

    wrong = (
        """\
import torch
from transformers import AutoModelForSeq2SeqLM

model = AutoModelForSeq2SeqLM.from_pretrained("t5-small")
no_decay = ["bias", "LayerNorm.weight"]  # FL140
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4)
""",
    )
    right = (
        """\
import torch
from transformers import AutoModelForSeq2SeqLM, BertForSequenceClassification

model = AutoModelForSeq2SeqLM.from_pretrained("t5-small")
no_decay = ["bias", "LayerNorm.weight", "layer_norm.weight"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4)
""",
        """\
import torch
from transformers import BertForSequenceClassification

model = BertForSequenceClassification.from_pretrained("bert-base-uncased")
no_decay = ["bias", "LayerNorm.weight"]
groups = [
    {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4)
""",
    )


def _decayed_model(module: Module, names: ast.AST) -> str | None:
    """The class of the model whose `named_parameters()` are chosen with these names; None where its norms may have them."""
    scope = module.scope(names)
    found: set[str] = set()
    for call in module.method_calls("named_parameters"):
        if not any(up is scope for up in module.parents(call)) and scope is not None:
            continue
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(owner, ast.Name) and (own := _own_model(module, owner)) is not None:
            found.add(own)
            continue
        made = [b for b in _makers(module, owner)] if isinstance(owner, ast.Name) else []
        if not made:
            return None
        found |= set(made)
    known = {f for f in found if _OTHER_NORMS.match(f) or f in module.classes}
    return sorted(known)[0] if known and known == found else None


def _own_model(module: Module, owner: ast.Name) -> str | None:
    """`self` of a model of this file whose norms are attributes with other names; None where one may be called LayerNorm."""
    cls = module.class_(owner) if owner.id == "self" else None
    if cls is None or not module.is_module_class(cls):
        return None
    names: list[str] = []
    for call in module.calls("torch.nn.LayerNorm", "torch.nn.RMSNorm"):
        statement = module.statement(call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        parts = [p for t in targets for p in (t.elts if isinstance(t, ast.Tuple) else [t])]
        if not parts:
            return None
        names += [last_name(p) for p in parts]
    return cls.name if names and not any("LayerNorm" in n for n in names) else None


def _makers(module: Module, name: ast.Name) -> Iterator[str]:
    """The classes that assignments to a model's name take it from: `X` of `X.from_pretrained(...)` and `X(...)`."""
    bound = module.bindings(name.id, module.scope(name)) or module.bindings(name.id, None)
    for binding in bound:
        value = values_of(module).bound_to(binding)
        match value:
            case ast.Call(ast.Attribute(cls, "from_pretrained" | "from_config")):
                yield last_name(cls)
            case ast.Call(ast.Name(cls)) if cls[:1].isupper():
                yield cls
