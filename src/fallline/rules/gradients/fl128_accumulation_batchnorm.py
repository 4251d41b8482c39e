"""FL128: BatchNorm under accumulation does not see the big batch."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Forward, Trace, Window, windows
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

__all__ = ["AccumulationBatchNorm"]

_NORMALISED = SETUP.replace(
    "nn.Linear(8, 16), nn.ReLU()", "nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()"
)


class AccumulationBatchNorm(Rule):
    code = "FL128"
    name = "accumulation-batchnorm"
    severity = Severity.INFO
    what = "Notes accumulation in a model with BatchNorm, or with a loss that compares the samples of a batch with each other."
    why = (
        "Accumulating k micro-batches equals one big batch only if every operation looks at one sample at a time. BatchNorm normalises with each micro-batch's own "
        "statistics and updates its running statistics k times; "
        "a contrastive loss sees fewer negatives."
    )
    instead = "Use GroupNorm or LayerNorm, or accept that the statistics are those of the micro-batch. Do not expect the same result as with the big batch."
    facts = ("accumulation-is-not-always-the-big-batch",)
    tokens = (b"backward",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in windows(trace):
            if not window.micro:
                continue
            compares = window.micro[0].in_batch
            if compares or _normalises(trace, window):
                what = (
                    "The loss compares samples within" if compares else "BatchNorm normalises over"
                )
                yield self.finding(
                    window.micro[0],
                    f"{what} each micro-batch, not over the window that is accumulated here, so the result differs from that of one big batch. "
                    "That may be fine; just do not expect the two to agree.",
                )

    wrong = (
        _NORMALISED
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()  # FL128
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        SETUP
        + """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.norm(self.hidden(x)).relu())


def train(model, loader, optimizer, pieces):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.chunk(pieces), y.chunk(pieces)):
            loss = loss_fn(model(small_x), small_y) / pieces
            loss.backward()  # FL128
        optimizer.step()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    train(model, loader, optimizer, 2)
""",
    )
    right = (
        # no accumulation
        _NORMALISED
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # GroupNorm looks at one sample at a time
        SETUP.replace("nn.ReLU()", "nn.GroupNorm(4, 16), nn.ReLU()")
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        # frozen statistics
        _NORMALISED
        + """
accumulation_steps = 2
model.eval()
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    )


def _normalises(trace: Trace, window: Window) -> bool:
    """A model with BatchNorm runs in training mode between the micro-batches."""
    for forward in window.inside.of(Forward):
        model = trace.model(forward.model)
        if model is not None and model.batchnorm and forward.training is not False:
            return True
    return False
