"""FL401 graph-retained: a loss is kept together with the graph that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Batch, Event, Forward, Keep, Mode, Optimizer, Step, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.flow.kept import (
    appended_in_training_step,
    carried_over,
    not_detached_like_the_others,
)
from fallline.flow.walked import kept_beside_backward
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import written

_HOW = {
    "append": "is stored with its graph",
    "add": "is added up with its graph",
}


class GraphRetained(Rule):
    code = "FL401"
    name = "graph-retained"
    severity = Severity.ERROR
    what = "Losses or outputs are stored together with their autograd graph, iteration after iteration, and never reach a backward."
    why = (
        "A tensor with a `grad_fn` keeps its whole graph alive. `losses.append(loss)` or `total += loss` holds one more graph after each "
        "iteration: memory grows until the run dies, often hours later, at a line that has nothing to do with it."
    )
    instead = "Keep the number: `losses.append(loss.detach())` without waiting for the device, or `total += loss.item()`."
    fix_safety = "Adds `.detach()`: the same value, without the graph."
    references = (
        "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    )
    tokens = (b".backward(", b"detach()", b"training_step", b"def forward")

    wrong = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
losses = []
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # FL401
print(len(losses))
""",
        """\
import torch
from torch import nn


def train_epoch(model, optimizer, loader):
    total = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss  # FL401
    return total / len(loader)


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    print(train_epoch(model, optimizer, loader).item())
""",
    )
    right = (
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
losses = []
total = 0.0
for x in loader:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    total += loss.item()
    last = loss
print(total, len(losses))
""",
        """\
import torch
from torch import nn

# The kept losses are summed and walked by one backward: the graphs are needed.
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    losses = []
    for _ in range(4):
        losses.append(model(torch.randn(8, 4)).pow(2).mean())
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    model.train()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
    model.eval()
    outputs = []
    total = 0
    with torch.no_grad():
        for x in loader:
            out = model(x)
            outputs.append(out)
            total += out.pow(2).mean()
    print(total, torch.cat(outputs).shape)
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        grows = _growing(trace)
        for keep in trace.of(Keep):
            how = _HOW.get(keep.how or "")
            if how is not None and keep.reaches_backward is False:
                sure = trace.live or (
                    _keeper(keep) in grows
                    and _has_graph(trace, keep)
                    and not _small(trace, keep)
                    and not _trains_elsewhere(trace, keep)
                )
                until = " until the end of the epoch" if _begun_again(trace, keep) else ""
                yield self.finding(
                    keep,
                    f"A tensor {how} and never reaches a backward, so memory grows with every iteration{until}. Keep its .detach() or .item() instead.",
                    severity=self._gravity(trace, keep) if sure else Severity.INFO,
                )

    def _gravity(self, trace: Trace, keep: Keep) -> Severity | None:
        """What a backward has freed and the next epoch drops is a few nodes for each batch."""
        if trace.live or not (_freed(trace, keep) and _begun_again(trace, keep)):
            return None
        return Severity.WARNING if keep.how == "add" else Severity.INFO

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """Where no loop is in view: what a function hands out for the log, and what a training step keeps."""
        for value in not_detached_like_the_others(module):
            yield self.finding(
                module.location(value),
                f"`{module.segment(value)}` goes into the log with its graph, unlike the other values here, so every entry that is kept holds a graph. Add .detach().",
                severity=Severity.INFO,  # what a log does with its entries is not seen, and many detach them
            )
        for statement in carried_over(module):
            yield self.finding(
                module.location(statement),
                f"`{module.segment(statement.targets[0])}` is computed from its last value and from this batch with its graph, so the graphs of all earlier batches stay alive. "
                "Detach what is added.",
                severity=Severity.WARNING,
            )
        for kept, loss in kept_beside_backward(module):
            yield self.finding(
                module.location(kept),
                f"`{loss}` is kept with its graph: what its backward has not freed stays in memory for as long as this is kept. Keep {loss}.item() or {loss}.detach().",
                severity=Severity.INFO,
            )
        for call in appended_in_training_step(module):
            yield self.finding(
                module.location(call),
                "training_step() keeps what it returns for the backward, with its graph, so memory grows with every batch until the list is cleared. Keep its .detach().",
                severity=Severity.WARNING,
            )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """What one setting walks is not kept for nothing: only that setting's loss is evaluated, not trained."""
        for keep in trace.of(Keep):
            if keep.reaches_backward:
                yield keep.at

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        kept = _kept(module, Editor(module).statement_at(finding.at.line))
        if kept is None:
            return None
        text = module.segment(kept)
        plain = isinstance(kept, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
        return Fix(
            "Keep the value without its graph",
            (Editor(module).replace(kept, f"{text}.detach()" if plain else f"({text}).detach()"),),
        )


def _begun_again(trace: Trace, keep: Keep) -> bool:
    """The same line fills a new container later: the list of the next epoch."""
    return any(other.at == keep.at and other.born != keep.born for other in trace.of(Keep))


def _has_graph(trace: Trace, keep: Keep) -> bool:
    """Whether what computed it was seen to be a model with weights that learn; a feature extractor may be frozen inside."""
    return not keep.of or any(_learns(trace, model) for model in keep.of)


def _trains_elsewhere(trace: Trace, keep: Keep) -> bool:
    """The same line of another call is walked by a backward: what is missing is no_grad around this call, and a detach here would cut the other."""
    inside = trace.before(keep).of(Forward).where(lambda e: e.at.function == keep.at.function)
    last = inside.first
    if last is None or last.used is not False:
        return False
    return any(e.used and e.at == last.at for e in trace.of(Forward))


def _small(trace: Trace, keep: Keep) -> bool:
    """A sum over the pieces of one batch, made again for each, of losses whose backward has freed their activations."""
    if keep.how != "add" or not keep.born:
        return False
    return _freed(trace, keep) and not any(e.loader for e in trace.of(Batch))


def _freed(trace: Trace, keep: Keep) -> bool:
    """Whether a backward walks all that it keeps of this batch, and lets go of the activations."""
    own = trace.before(keep).until(Batch).of(Forward).where(lambda e: e.model in (keep.of or ()))
    return bool(own) and all(e.used for e in own)


def _learns(trace: Trace, model: str) -> bool:
    """Switched between train and eval, walked by a backward, or held by an optimizer; not only called like a model."""
    if any(e.model == model for e in trace.of(Mode)):
        return True
    if any(e.model == model and e.used for e in trace.of(Forward)):
        return True
    known = trace.model(model)
    sets = known.parameters if known is not None else None
    return sets is not None and any(
        not sets.isdisjoint(o.parameters or ()) for o in trace.objects_of(Optimizer)
    )


def _keeper(keep: Keep) -> tuple[Location, object]:
    """Where something is kept, and the container (by the iteration that made it)."""
    return keep.at, keep.born


def _growing(trace: Trace) -> set[tuple[Location, object]]:
    """Containers that take in more from one update or evaluated batch to the next.

    What is emptied with every update, or holds the pieces of one step, ends where the step ends.
    """
    found: set[tuple[Location, object]] = set()
    between: dict[tuple[Location, object], set[type[Event]]] = {}
    for event in trace.of(Batch, Backward, Step, Keep):
        match event:
            case Keep():
                kinds = between.get(_keeper(event), set())
                if Step in kinds or (Batch in kinds and Backward not in kinds):
                    found.add(_keeper(event))
                between[_keeper(event)] = set()
            case _:
                for kinds in between.values():
                    kinds.add(type(event))
    return found - _made_anew(trace)


def _made_anew(trace: Trace) -> set[tuple[Location, object]]:
    """Sums that each batch begins again, although the loop inside it steps more than once: `for _ in range(n_critic)`."""
    made: dict[Location, dict[object, list[Keep]]] = {}
    for keep in trace.of(Keep):
        made.setdefault(keep.at, {}).setdefault(keep.born, []).append(keep)
    return {
        (at, born)
        for at, each in made.items()
        if len(each) > 1
        and not any(trace.between(keeps[0], keeps[-1]).of(Batch) for keeps in each.values())
        for born in each
    }


def _kept(module: Module, statement: ast.stmt | None) -> ast.expr | None:
    """The expression that a statement stores, where it is surely one tensor."""
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(attr="append"), [value])):
            found: ast.expr | None = value
        case ast.AugAssign(op=ast.Add() | ast.Sub(), value=value):
            found = value
        case ast.Assign([_]):
            found = _added(statement)
        case _:
            found = None
    match found:
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() | ast.BinOp():
            return found
    return None


def _added(statement: ast.Assign) -> ast.expr | None:
    """`history[i] = loss`, and `total = total + loss`."""
    match statement.targets[0], statement.value:
        case ast.Subscript(), value:
            return value
        case target, ast.BinOp(left, ast.Add(), right):
            before = written(target)
            if written(left) == before:
                return right
            if written(right) == before:
                return left
    return None
