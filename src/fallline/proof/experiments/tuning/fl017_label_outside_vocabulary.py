"""FL017: a token or a label that is not there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

FINE = "no error"


@experiment(
    "FL017",
    claim="On a CPU a token beyond the embedding and a label beyond the classes raise; a label of -1 raises too, because only -100 is ignored.",
)
def label_outside_vocabulary() -> Measured:
    said, fine = _told(token=5, label=5, ignored=-1), _told(token=4, label=4, ignored=-100)
    return Measured(
        sides={"wrong": said, "right": fine},
        conclusion=f"token 5 of 5 raises “{said['the last token']}”, label 5 of 5 raises “{said['the last label']}”; a label of -1 raises “{said['the ignored label']}”; 4 and -100 are fine",
        holds={
            "what is not there raises": FINE not in said.values(),
            "what is there does not": set(fine.values()) == {FINE},
        },
    )


def _told(token: int, label: int, ignored: int) -> dict[str, str]:
    """What 5 rows and 5 classes say to these numbers."""
    logits = torch.zeros(2, 5)
    return {
        "the last token": _said(lambda: nn.Embedding(5, 4)(torch.tensor([token]))),
        "the last label": _said(lambda: F.cross_entropy(logits, torch.tensor([0, label]))),
        "the ignored label": _said(lambda: F.cross_entropy(logits, torch.tensor([0, ignored]))),
    }


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except (IndexError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return FINE
