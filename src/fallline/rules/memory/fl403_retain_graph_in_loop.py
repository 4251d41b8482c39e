"""FL403 retain-graph-in-loop: graphs are kept for a second backward that never comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fallline.events import Backward, Batch, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Editor, Module


class RetainGraphInLoop(Rule):
    code = "FL403"
    name = "retain-graph-in-loop"
    severity = Severity.WARNING
    what = "`backward(retain_graph=True)` runs on every iteration, and no second backward uses the graph."
    why = (
        "The graph and its saved activations stay alive until the loss is overwritten, so two graphs live at once at the peak. Often the flag was added to "
        'silence "backward through the graph a second time": then state is carried from one iteration to the next and needs a `detach()`.'
    )
    instead = "Call `backward()` without it, and detach the tensors that you carry over to the next iteration."
    fix_safety = (
        "Removes the argument; where a second backward exists after all, torch raises and says so."
    )
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html",)
    tokens = (b"retain_graph",)

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward(retain_graph=True)  # FL403
    optimizer.step()
""",
        """\
import torch
from torch import nn


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)  # FL403
    optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        update(model, optimizer, x, y)
""",
    )
    right = (
        """\
import torch
from torch import nn

# Two losses share one graph: the first backward has to keep it for the second.
torch.manual_seed(0)
trunk, a, b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*trunk.parameters(), *a.parameters(), *b.parameters()], lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    features = trunk(x)
    loss_a = a(features).pow(2).mean()
    loss_b = b(features).abs().mean()
    loss_a.backward(retain_graph=True)
    loss_b.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward(retain_graph=False)
    optimizer.step()
""",
        """\
import torch
from torch import nn

# The same graph is walked twice, once for each output.
torch.manual_seed(0)
model = nn.Linear(4, 2)
x = torch.randn(1, 4, requires_grad=True)
y = model(x)
rows = []
for i in range(2):
    x.grad = None
    y[0, i].backward(retain_graph=True)
    rows.append(x.grad.clone())
print(torch.stack(rows).shape)
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("backward"):
            return
        wasted: dict[Location, list[bool]] = defaultdict(list)
        for backward in trace.of(Backward):
            wasted[backward.at].append(_kept_for_nothing(trace, backward))
        for place, each in wasted.items():
            if len(each) > 1 and all(each):
                yield self.finding(
                    place,
                    "retain_graph=True keeps the graph on every iteration although no second backward uses it, which only costs memory. Remove it.",
                )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """A graph that one setting walks twice has to be kept."""
        for backward in trace.of(Backward):
            if backward.second:
                yield backward.at

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        calls = [
            c
            for c in module.method_calls("backward")
            if c.lineno <= finding.at.line <= (c.end_lineno or c.lineno)
        ]
        if len(calls) != 1:
            return None
        edit = Editor(module).remove_keyword(calls[0], "retain_graph")
        return Fix("Let backward free the graph", (edit,)) if edit is not None else None


def _kept_for_nothing(trace: Trace, backward: Backward) -> bool:
    """Known not to be walked again, and no other backward of the same iteration that might share the graph."""
    if backward.retain_graph is not True or backward.second is not False or backward.create_graph:
        return False
    following = trace.after(backward).until(Batch).of(Backward).first
    return following is None or following.at == backward.at
