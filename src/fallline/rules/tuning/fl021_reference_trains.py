"""FL021: a reference or teacher that is meant to be fixed is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import chained_on, last_name
from fallline.flow.recording import under_no_grad
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import written


class ReferenceTrains(Observed):
    code = "FL021"
    name = "reference-trains"
    severity = Severity.WARNING
    what = """\
Finds a reference, teacher or target model that gets gradients, or that runs with dropout."""
    why = """\
A reference with dropout gives a different answer each time, so the KL term or the distillation target is noise. Gradients that nobody uses cost the memory of a second model."""
    instead = """\
Put it into eval mode, take its gradients away, and call it without a graph.

```python
reference = copy.deepcopy(model).eval().requires_grad_(False)
with torch.no_grad():
    reference_logits = reference(ids).logits
```"""

    tokens = (
        b"ref",
        b"teacher",
    )
    wrong = (
        """\
import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
ref_model = copy.deepcopy(model)
optimizer = torch.optim.AdamW(list(model.parameters()) + list(ref_model.parameters()), lr=1e-4)  # FL021
""",
        """\
import copy

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
reference_model = copy.deepcopy(policy)
reference_model.train()  # FL021
""",
    )
    right = (
        """\
import copy

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
ref_model = copy.deepcopy(model).eval().requires_grad_(False)
ref_model.train(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.method_calls("train"):
            name = _reference(call)
            mode = module.argument(call, 0, "mode")
            if name and (mode is None or module.constant(mode) is True):
                yield self.finding(
                    module.location(call),
                    f"`{name}` is a fixed reference and is put into train mode, so dropout changes its log-probabilities for the same tokens. Call `eval()` on it",
                )
        for call, name in _teachers_in_training(module):
            yield self.finding(
                module.location(call),
                f"`{name}` is loaded and only asked, and is put into train mode, so dropout and batch statistics change its targets. Call `eval()` on it",
            )
        for call in module.method_calls("parameters"):
            name = _reference(call)
            made = [
                u
                for u in module.parents(call)
                if isinstance(u, ast.Call)
                and (module.resolve(u.func) or "").startswith("torch.optim.")
            ]
            if name and made:
                yield self.finding(
                    module.location(made[0]),
                    f"The optimizer holds the parameters of `{name}`, which is meant to be fixed, so the reference moves with the policy. Leave them out",
                )

    def says(self, entry: dict[str, Any]) -> str:
        if entry["why"] == "dropout":
            return f"A fixed copy of the model ({entry['model']}) runs in train mode, so dropout changes its log-probabilities for the same tokens. Call `eval()` on it"
        return (
            f"{entry['model']} is in no optimizer, but it gets gradients: they cost the memory of a second model and change nothing. "
            "Call it under `torch.no_grad()` and freeze it with `requires_grad_(False)`"
        )


_REFERENCE = re.compile(r"^ref(erence)?(_?(model|policy|net))?$", re.IGNORECASE)


_TEACHER = re.compile(r"^(\w+_)?teacher(_(model|net|network))?$", re.IGNORECASE)


def _teachers_in_training(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """`teacher.train()` of a teacher whose weights are loaded and that is called under no_grad. A mean teacher, which follows its student, is not loaded."""
    for call in module.method_calls("train"):
        held = chained_on(call)
        if not _TEACHER.match(last_name(held)) or (
            call.args and module.constant(call.args[0]) is not True
        ):
            continue
        name = written(held)
        text = module.source.text
        if f"{name}.eval(" in text or not (
            f"{name}.load_state_dict(" in text
            or re.search(rf"\b{re.escape(name)} = .*(from_pretrained|load)\(", text)
        ):
            continue
        if any(written(c.func) == name and under_no_grad(module, c) for c in module.all(ast.Call)):
            yield call, name


def _reference(call: ast.Call) -> str | None:
    """The name of a reference model that this is a method of."""
    match call.func:
        case ast.Attribute(ast.Name(name) | ast.Attribute(attr=name)) if _REFERENCE.match(name):
            return name
    return None
