"""FL126 parameters-not-optimized: parameters receive gradients but belong to no optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.left_out import filtered_out, not_listed
from fallline.flow.made_anew import made_anew
from fallline.rules._observed import Observed, parameters
from fallline.syntax import Module


class ParametersNotOptimized(Observed):
    code = "FL126"
    name = "parameters-not-optimized"
    severity = Severity.ERROR
    what = "Parameters receive gradients but belong to no optimizer. A run shows them, and so does source that lists the parameters by hand, or that makes layers in `forward`."
    why = (
        "They stay at their random start while the rest of the model trains around them. It happens when a layer is added after the optimizer was built, "
        "when parameter groups are written by hand, when a layer is made in `forward` (its weights are new and random at every call), or when the optimizer was given a different copy of the model."
    )
    instead = "Build the optimizer last, from all of `model.parameters()`; freeze what must not train with `requires_grad_(False)`, which also saves its gradients."

    tokens = (b"parameters()", b"def forward")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for left in filtered_out(module):
            yield self.finding(
                module.location(left.node),
                f"Parameters with '{left.name}' in their name are left out of the optimizer, but this model's head reads their output, so they stay at their start while "
                "the rest trains. Give them to the optimizer.",
            )
        for left in not_listed(module):
            yield self.finding(
                module.location(left.node),
                f"The parameters are listed part by part and `self.{left.name}`, which forward() uses, is in no list, so it is never updated. Add "
                f"`self.{left.name}.parameters()`, or freeze it with `requires_grad_(False)`.",
                # a norm that stays as it was made still normalises
                severity=Severity.INFO if left.norm else Severity.WARNING,
            )

        for layer in made_anew(module):
            yield self.finding(
                module.location(layer),
                "This layer is made in forward(), so every call has new random weights that no optimizer holds and no checkpoint keeps. Make it in __init__.",
            )

    def says(self, entry: dict[str, Any]) -> str:
        said = f"{parameters(entry)} receive gradients, but no optimizer holds them, so they are never updated. "
        if entry.get("again"):
            return f"{said}This optimizer holds parameters that an earlier one steps already: pass it these instead."
        return f"{said}Pass them to the optimizer, or if they are to stay as they are (a teacher, a frozen part), turn their gradients off."

    wrong = (
        """\
import torch
from transformers import BertForSequenceClassification

model = BertForSequenceClassification.from_pretrained("bert-base-uncased")
named = list(model.named_parameters())
named = [n for n in named if "pooler" not in n[0]]  # FL126
optimizer = torch.optim.AdamW([p for _, p in named])
""",
        """\
import itertools

import torch
from torch import nn


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 8)
        self.language = nn.Embedding(4, 8)

    def forward(self, x, language):
        return self.decoder(self.encoder(x) + self.language(language))

    def get_optimizer(self):
        parameters = itertools.chain(self.encoder.parameters(), self.decoder.parameters())
        return torch.optim.AdamW(parameters, lr=1e-4)  # FL126
""",
        """\
import torch
from torch import nn


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = nn.Conv1d(4, 8, 3)(x).relu()  # FL126
        return self.head(h.amax(-1))


model = Text()
optimizer = torch.optim.AdamW(model.parameters())
""",
    )
    right = (
        # a question answerer has no head on the pooler
        """\
import torch
from transformers import BertForQuestionAnswering

model = BertForQuestionAnswering.from_pretrained("bert-base-uncased")
named = [n for n in model.named_parameters() if "pooler" not in n[0]]
optimizer = torch.optim.AdamW([p for _, p in named])
""",
        # made once, and kept
        """\
import torch
from torch import nn


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = None

    def forward(self, x):
        if self.head is None:
            self.head = nn.Linear(x.shape[-1], 2)
        return self.head(x)


model = Text()
model(torch.randn(4, 8))
optimizer = torch.optim.AdamW(model.parameters())
""",
        # frozen on purpose
        """\
import itertools

import torch
from torch import nn


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 8)
        self.speaker = nn.Linear(8, 8)
        self.speaker.requires_grad_(False)

    def forward(self, x):
        return self.decoder(self.encoder(x) + self.speaker(x))

    def get_optimizer(self):
        parameters = itertools.chain(self.encoder.parameters(), self.decoder.parameters())
        return torch.optim.AdamW(parameters, lr=1e-4)
""",
    )
