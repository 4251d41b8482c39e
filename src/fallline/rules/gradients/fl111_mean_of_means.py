"""FL111: means over different counts are averaged as if they were over equal ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fallline.events import Backward, Trace, Window, windows
from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["MeanOfMeans"]

_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
vocabulary, length = 16, 12
model = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.randint(1, vocabulary, (24, length))
for row in range(24):
    tokens[row, 2 + row % 10 :] = 0  # padding
loader = torch.utils.data.DataLoader(tokens, batch_size=4)
"""

# A divisor that is not known as a number: these words say that it counts elements, not micro-batches.
_TOTAL = re.compile(r"total|tok|item|len|count|sum|numel|denom|weight|valid|size", re.IGNORECASE)
# Frameworks that divide by the number of micro-batches, whatever these hold.
_BY_COUNT = ("accelerate", "lightning", "deepspeed")


class MeanOfMeans(Rule):
    code = "FL111"
    name = "mean-of-means"
    severity = Severity.WARNING
    what = (
        "Finds accumulation of losses that are means over a mask, an `ignore_index` or true lengths, divided by a constant number of "
        "micro-batches."
    )
    why = "Micro-batches hold different numbers of real tokens, so the mean of their means is not the mean over the big batch: a token in a short micro-batch weighs more, and the effect grows with the difference in length. The sum divided by all tokens of the window is exact."
    instead = (
        "Add up sums, and divide by the number of tokens in the whole window:\n\n"
        '```python\ntotal = sum((y != pad).sum() for _, y in window)\nfor x, y in window:\n    loss = F.cross_entropy(model(x), y, ignore_index=pad, reduction="sum") / total\n    loss.backward()\n```\n\n'
        "`fallline.Stepper` takes the weight of each micro-batch: `micro.backward(loss_sum, weight=tokens)`."
    )
    facts = ("token-weighted-accumulation", "sum-over-total-is-exact")
    tokens = (b"backward",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in windows(trace):
            if window.micro and all(_ragged_mean(b) for b in window.micro) and _constant(window):
                yield self.finding(
                    window.micro[0],
                    "This loss is a mean over a varying number of elements, but every micro-batch is divided by the same number, so a token in a short "
                    f"micro-batch weighs more than one in a long one. {_remedy(window)}",
                )

    wrong = (
        _SETUP
        + """
accumulation_steps = 2
loss_fn = nn.CrossEntropyLoss(ignore_index=0)
for epoch in range(2):
    for i, batch in enumerate(loader):
        logits = model(batch[:, :-1])
        loss = loss_fn(logits.flatten(0, 1), batch[:, 1:].flatten()) / accumulation_steps
        loss.backward()  # FL111
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        _SETUP
        + """

def masked_loss(logits, targets):
    mask = (targets != 0).float()
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        for piece in batch.chunk(2):
            loss = masked_loss(model(piece[:, :-1]), piece[:, 1:]) / 2
            loss.backward()  # FL111
        optimizer.step()
""",
    )
    right = (
        # sums, divided by the tokens of the whole window
        _SETUP
        + """
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        total = (batch[:, 1:] != 0).sum().clamp(min=1)
        for piece in batch.chunk(2):
            logits = model(piece[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, piece[:, 1:].flatten(), ignore_index=0, reduction="sum")
            (loss / total).backward()
        optimizer.step()
""",
        # blocks of one length: the mean of means is the mean
        _SETUP
        + """
accumulation_steps = 2
loss_fn = nn.CrossEntropyLoss()
for epoch in range(2):
    for i, batch in enumerate(loader):
        logits = model(batch[:, :-1])
        loss = loss_fn(logits.flatten(0, 1), batch[:, 1:].flatten()) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        # no accumulation
        _SETUP
        + """
loss_fn = nn.CrossEntropyLoss(ignore_index=0)
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        loss_fn(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
""",
    )


def _remedy(window: Window) -> str:
    """A framework that divides by itself leaves no place for another divisor, but one for a weight."""
    inside = {
        "lightning": "ExactAccumulation(mean_over=...)",
        "accelerate": "exact_accumulation(accelerator)",
    }
    framework = window.micro[0].normalised
    if framework in inside:
        return f"`{inside[framework]}` of `fallline.integrations.{framework}` weighs each micro-batch by its count."
    return "Sum the losses and divide by the count of the whole window."


def _ragged_mean(backward: Backward) -> bool:
    return backward.ragged is True and backward.reduction == "mean"


def _constant(window: Window) -> bool:
    """Every micro-batch is divided by one and the same number, here or in the framework."""
    if all(b.normalised in _BY_COUNT for b in window.micro):
        return True
    if not all(b.divided for b in window.micro):
        return False
    numbers = {b.divisor for b in window.micro}
    if numbers != {None}:
        return len(numbers) == 1
    texts = {b.divided_by or "" for b in window.micro}
    return len(texts) == 1 and not _TOTAL.search(texts.pop() or "total")
