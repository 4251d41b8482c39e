"""FL017: a token or a label that is not there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL017",
    claim="On a CPU a token beyond the embedding and a label beyond the classes raise; a label of -1 raises too, because only -100 is ignored.",
)
def label_outside_vocabulary() -> Measured:
    logits = torch.zeros(2, 5)
    said = {
        "token 5 of 5 rows": _said(lambda: nn.Embedding(5, 4)(torch.tensor([5]))),
        "label 5 of 5 classes": _said(lambda: F.cross_entropy(logits, torch.tensor([0, 5]))),
        "label -1": _said(lambda: F.cross_entropy(logits, torch.tensor([0, -1]))),
    }
    fine = _said(lambda: F.cross_entropy(logits, torch.tensor([4, -100])))
    return Measured(
        sides={"wrong": said, "right": {"labels 4 and -100": fine or "a loss"}},
        conclusion=f"token 5 of 5 says “{said['token 5 of 5 rows']}”, label 5 of 5 says “{said['label 5 of 5 classes']}”; 4 and -100 are fine",
        holds={
            "what is not there raises": all(said.values()),
            "what is there does not": fine == "",
        },
    )


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except (IndexError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return ""
