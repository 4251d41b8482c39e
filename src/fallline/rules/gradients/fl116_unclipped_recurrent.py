"""FL116: an RNN or Transformer trained from scratch with no clipping anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["UnclippedRecurrent"]

_LAYERS = (
    "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer",
)  # fmt: skip
# Any word of clipping, wherever it is done; and any sign that the weights come from elsewhere or a framework trains.
_ELSEWHERE = re.compile(
    r"clip|max_grad_norm|grad_norm|from_pretrained|load_state_dict|pretrained|\bTrainer\(|lightning|accelerat|deepspeed"
)

_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(24, 6, 4), torch.randn(24, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
loss_fn = nn.MSELoss()
"""


class UnclippedRecurrent(Rule):
    code = "FL116"
    name = "unclipped-recurrent"
    severity = Severity.INFO
    what = "Notes an RNN or a Transformer that is trained from scratch in a file that never clips gradients."
    why = (
        "Backpropagation through time multiplies gradients once for each step: a spectral radius a little below or above 1 shrinks or blows them up by orders of magnitude. "
        "One spike is enough to undo an SGD run. Many Transformer recipes clip, though not all of them."
    )
    instead = (
        "Log the norms; if they spike, clip:\n\n"
        "```python\nnorm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n```"
    )
    facts = ("recurrence-multiplies", "spikes-sgd-against-adam")
    tokens = (b"RNN", b"LSTM", b"GRU", b"Transformer")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        layers = list(module.calls(*(f"torch.nn.{name}" for name in _LAYERS)))
        if not layers or _ELSEWHERE.search(module.source.text) or not _trains(module):
            return
        first = min(layers, key=lambda call: (call.lineno, call.col_offset))
        kind = str(module.resolve(first.func)).rpartition(".")[2]
        yield self.finding(
            module.location(first),
            f"{kind} is trained from scratch and no gradient is clipped in this file. Watch the gradient norms; if they spike, clip them "
            "between backward() and step().",
        )

    wrong = (
        _SETUP
        + """

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)  # FL116
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.out(states[:, -1])


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        _SETUP
        + """
layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True)  # FL116
model = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
    )
    right = (
        _SETUP
        + """
rnn, out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1)
parameters = [*rnn.parameters(), *out.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(out(rnn(x)[0][:, -1]), y).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
""",
        # defined here, trained elsewhere
        """\
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


print(Encoder()(torch.zeros(1, 2, 4)).shape)
""",
        # no recurrence, no attention
        _SETUP
        + """
model = nn.Sequential(nn.Flatten(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
    )


def _trains(module: Module) -> bool:
    """Both a backward() and a step() are called in this file."""
    return any(module.method_calls("backward")) and any(module.method_calls("step"))
