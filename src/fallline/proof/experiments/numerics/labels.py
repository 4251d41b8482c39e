"""Labels and indices outside their range: who raises, who says which, and who says nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

CLASSES = 10


def _said(call: Callable[[], Tensor]) -> str:
    """The value, or the message of the error."""
    try:
        return f"{call().mean().item():.3g}"
    except (IndexError, RuntimeError) as error:
        return str(error).splitlines()[0]


@experiment(
    "labels-out-of-range",
    claim="On the CPU a label outside 0 to classes - 1 raises, with the label in the message; -100 is left out silently, and binary_cross_entropy_with_logits takes any label.",
    taught="A wrong label always shows.",
)
def labels_out_of_range() -> Measured:
    logits = torch.zeros(2, CLASSES)
    labels = {
        label: _said(lambda label=label: F.cross_entropy(logits, torch.tensor([0, label])))  # type: ignore[misc]
        for label in (9, 10, -1, -100)
    }
    embedding = _said(lambda: nn.Embedding(CLASSES, 4)(torch.tensor([CLASSES])))
    scores, wrong = torch.full((3,), 8.0), torch.tensor([0.0, 1.0, 5.0])
    strict = _said(lambda: F.binary_cross_entropy(scores.sigmoid(), wrong))
    silent = _said(lambda: F.binary_cross_entropy_with_logits(scores, wrong))
    return Measured(
        sides={
            "cross_entropy, 10 classes": {f"label {k}": v for k, v in labels.items()},
            "others": {
                "Embedding(10), index 10": embedding,
                "binary_cross_entropy, label 5": strict,
                "binary_cross_entropy_with_logits, label 5": silent,
            },
        },
        conclusion=f"ten classes on the CPU: label 10 says “{labels[10]}”, label -1 says “{labels[-1]}”, -100 is left out; Embedding(10) with index 10 says “{embedding}” and not which; binary_cross_entropy_with_logits takes a label of 5 and returns {silent}",
        holds={
            "a label in range has a loss": float(labels[9]) > 0,
            "one too many raises and is named": "10" in labels[10] and "bounds" in labels[10],
            "below zero raises and is named": "-1" in labels[-1] and "bounds" in labels[-1],
            "-100 is left out": labels[-100] == labels[9],
            "an embedding raises": "out of range" in embedding,
            "binary_cross_entropy raises": "between 0 and 1" in strict,
            "with logits nobody objects, and the loss is below zero": float(silent) < 0,
        },
    )
