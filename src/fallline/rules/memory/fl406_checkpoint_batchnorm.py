"""FL406 checkpoint-batchnorm: recomputation updates BatchNorm's statistics a second time."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Checkpoint, Trace
from fallline.finding import Finding, Severity
from fallline.flow.parts import makes
from fallline.rule import Rule
from fallline.syntax import Module


class CheckpointBatchNorm(Rule):
    code = "FL406"
    name = "checkpoint-batchnorm"
    severity = Severity.INFO
    what = "Activation checkpointing recomputes a block that holds BatchNorm, so its running statistics are updated twice for one batch."
    why = (
        "The block runs in the forward pass and again in the backward pass, and BatchNorm moves its running mean and variance each time (measured: "
        "`num_batches_tracked` 2 after one step, the running mean moved 1.9 times as far). Gradients are right; the statistics follow the data faster than `momentum` says."
    )
    instead = "Keep BatchNorm outside the checkpointed block, or use `momentum = 1 - sqrt(1 - momentum)` in it, or GroupNorm / LayerNorm."
    facts = ("checkpointing-and-batchnorm",)
    references = ("https://docs.pytorch.org/docs/stable/checkpoint.html",)
    tokens = (b"checkpoint",)

    wrong = (
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
block = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = head(checkpoint(block, x, use_reentrant=False)).pow(2).mean()  # FL406
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = checkpoint(self.body, x, use_reentrant=False)  # FL406
        return self.head(x.mean(-1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 1, 8), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
block = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU())
norm = nn.BatchNorm1d(8)
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*block.parameters(), *norm.parameters(), *head.parameters()], lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = head(norm(checkpoint(block, x, use_reentrant=False))).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

# BatchNorm in eval mode does not move.
torch.manual_seed(0)
block = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
block.eval()
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = head(checkpoint(block, x, use_reentrant=False)).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for checkpoint in trace.of(Checkpoint):
            if checkpoint.batchnorm is True:
                yield self.finding(checkpoint, _SAYS)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls("torch.utils.checkpoint.checkpoint"):
            at_rest = call.args and f"{module.segment(call.args[0])}.eval()" in module.source.text
            if call.args and not at_rest and makes(module, call.args[0], _is_batch_norm):
                yield self.finding(module.location(call), _SAYS)


_SAYS = (
    "Activation checkpointing runs this block twice, so BatchNorm updates its running statistics twice for every batch. "
    "Keep BatchNorm out of the checkpointed block."
)


def _is_batch_norm(name: str) -> bool:
    return name.startswith("torch.nn.") and "BatchNorm" in name
