"""FL402 eval-with-grad: an evaluation builds autograd graphs that nobody walks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from fallline.events import Backward, Forward, Mode, Step, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.flow.answers import answers, recorded, scripted
from fallline.flow.recording import OFF, never_entered, switched_off, under_no_grad
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, methods_called

_EVALUATES = re.compile(
    r"eval|val|test|infer|predict|generate|sampl|accuracy|score|metric", re.IGNORECASE
)
_TRAINS = frozenset({"backward", "zero_grad", "step", "grad"})


class EvalWithGrad(Rule):
    code = "FL402"
    name = "eval-with-grad"
    severity = Severity.WARNING
    yields_to = ("FL401",)
    yields_within = "function"
    what = "A model in eval mode is called while autograd records, and no backward uses the result, or `no_grad` is made and never entered."
    why = (
        "`model.eval()` changes dropout and BatchNorm; it does not stop autograd. Without `torch.no_grad()` every activation of the evaluation is "
        "kept for a backward that never comes: more memory for nothing, and out of memory at batch sizes that would fit."
    )
    instead = "Evaluate under `torch.no_grad()` or `torch.inference_mode()`."
    fix_safety = (
        "Adds `@torch.no_grad()` to an evaluation function, or puts the evaluation loop under it."
    )
    references = (
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc",
    )
    tokens = (b"eval(", b"no_grad", b"inference_mode", b"numpy", b"tolist", b"item")

    wrong = (
        """\
import torch
from torch import nn


def evaluate(model, loader):
    model.eval()
    correct = 0.0
    for x, y in loader:
        correct += (model(x) - y).abs().mean().item()  # FL402
    return correct


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(evaluate(model, loader))
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    for x, y in loader:
        output = model(x)  # FL402
        total += nn.functional.mse_loss(output, y).item()
    print(total)
""",
        # one function for both: training for one caller, evaluation for the other
        """\
import torch
from torch import nn


def epoch(model, loader, optimizer, train=True):
    model.train() if train else model.eval()
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)  # FL402
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for _ in range(2):
    epoch(model, loader, optimizer)
    print(epoch(model, loader, optimizer, train=False))
""",
        # one of several ways to call the model: one mistake, told where the first is
        """\
import os

import torch
from torch import nn


def evaluate(model, loader, kind):
    model.eval()
    total = 0.0
    for x, y in loader:
        if kind == "plain":
            out = model(x)  # FL402
        elif kind == "flipped":
            out = model(x.flip(0))
        else:
            out = model(-x)
        total += nn.functional.mse_loss(out, y).item()
    return total


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for _ in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print(evaluate(model, loader, os.environ.get("KIND", "plain")))
""",
        # `and` of two context managers is the second one
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    for x, y in loader:
        with torch.no_grad() and torch.autocast("cpu", torch.bfloat16): output = model(x)  # FL402
        print(nn.functional.mse_loss(output.float(), y).item())
""",
    )
    right = (
        """\
import torch
from torch import nn


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    return sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader)


def test(model, loader):
    model.eval()
    return sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader)


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(evaluate(model, loader))
    with torch.inference_mode():
        print(test(model, loader))
""",
        """\
import torch
from torch import nn

# Saliency needs the gradient of the input, so evaluation has to record.
torch.manual_seed(0)
model = nn.Linear(4, 1)
model.eval()
for _ in range(3):
    x = torch.randn(2, 4, requires_grad=True)
    score = model(x).sum()
    score.backward()
    print(x.grad.abs().mean().item())
""",
        """\
import torch
from torch import nn

# A teacher in eval mode: its output is part of a loss that is walked.
torch.manual_seed(0)
model, teacher = nn.Linear(4, 1), nn.Linear(4, 1)
teacher.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), teacher(x))
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn


# One function for both: this caller evaluates under no_grad.
def epoch(model, loader, optimizer, train=True):
    model.train() if train else model.eval()
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for _ in range(2):
    epoch(model, loader, optimizer)
    with torch.no_grad():
        print(epoch(model, loader, optimizer, train=False))
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        wasted = _evaluations(trace)
        # one forward pass of a program that trains nothing costs nobody anything
        trains = bool(trace.of(Backward, Step))
        places = Counter(e.at for e in wasted)
        reported: set[str] = set()  # functions already reported in this stretch of eval mode
        begins: dict[str, Location] = {}
        for event in sorted([*wasted, *trace.of(Mode)], key=lambda e: e.order):
            match event:
                case Mode():
                    reported.clear()
                    begins = {"cause": event.at}
                case Forward() if event.at.function not in reported and (
                    trains or places[event.at] > 1 or event.repeated
                ):
                    reported.add(event.at.function)
                    call = _call_to_cover(trace, event)
                    yield self.finding(
                        event,
                        "The model is evaluated while autograd records, so every activation is kept for a backward that never comes. "
                        + (
                            f"Training goes through here too: put the call at {call.near(event.at)} under torch.no_grad()."
                            if call
                            else "Use torch.no_grad()."
                        ),
                        # one pass, to warm up, and sample by sample: each small graph is dropped at once
                        severity=None
                        if trace.live or (event.repeated and event.fed)
                        else Severity.INFO,
                        related={**begins, "call": call} if call else begins,
                    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for dropped in never_entered(module, OFF):
            if not under_no_grad(module, dropped) and not switched_off(module, dropped):
                text = module.segment(dropped)
                yield self.finding(
                    module.location(dropped),
                    f"`{text} and ...` evaluates to what comes after `and`, so only that is entered and autograd records all of this. Write `with {text}, ...`.",
                )

        for answer in answers(module):
            if recorded(module, answer):
                yield self.finding(
                    module.location(answer.call),
                    f"`{answer.model}` is called for its answer alone while autograd records, so every activation is kept until the answer is dropped. Put `{answer.function.name}` under torch.no_grad()",
                    presuming="no caller has turned recording off",
                    severity=Severity.INFO,
                    related={"cause": module.location(answer.function)},
                )

        if (script := scripted(module)) is not None and not under_no_grad(module, script[0]):
            yield self.finding(
                module.location(script[0]),
                f"`{script[1]}` is called for its answer alone while autograd records, so every activation is kept until the answer is dropped. Put this loop under torch.no_grad().",
                severity=Severity.INFO,
            )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """A caller that holds no_grad where another one cannot be seen to."""
        for forward in trace.of(Forward):
            if forward.training is False and forward.grad is False and not forward.frozen:
                yield forward.at

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        if "call" in finding.related:
            return None  # without recording, training would fail here
        editor = Editor(module)
        statement = editor.statement_at(finding.at.line)
        no_grad = module.spelling("torch.no_grad")
        if statement is None or no_grad is None:
            return None
        function = module.function(statement)
        if function is not None and not _trains(function) and _evaluates(function):
            return Fix(
                "Evaluate without recording", (editor.insert_before(function, f"@{no_grad}()"),)
            )
        outermost = _evaluation_loop(module, statement)
        edits = editor.wrap(outermost, f"with {no_grad}():") if outermost is not None else None
        return Fix("Evaluate without recording", edits) if edits is not None else None


def _call_to_cover(trace: Trace, forward: Forward) -> Location | None:
    """The evaluation's own call of a function that training calls too."""
    trained = [e for e in trace.of(Forward) if e.used and e.at == forward.at]
    known = {e.callers for e in trained}
    return next(
        (
            call
            for call in reversed(forward.callers)
            if trained and not any(call in c for c in known)
        ),
        None,
    )


def _evaluations(trace: Trace) -> list[Forward]:
    """The forward passes of an evaluation that build graphs for nothing.

    A model that no optimizer steps, in a run that trains another one, is a teacher or a feature extractor. A
    function that walks one of its forward passes in eval mode, or may, is an attack, an explanation or an adaptation.
    """
    forwards = trace.of(Forward)
    trained = _trained(trace)
    attacks = {e.at.function for e in forwards if e.training is False and _walked(e)} - {""}
    return [
        e
        for e in forwards
        if _builds_for_nothing(e)
        and (
            not trained
            or not trace.sets_of(e.model).isdisjoint(trained)
            or _built_again(trace, e, trained)
        )
        and e.at.function not in attacks
    ]


def _built_again(trace: Trace, forward: Forward, trained: set[str | None]) -> bool:
    """A test that builds the trained model again and goes over data of its own: not a teacher."""
    model = trace.model(forward.model)
    kinds = {known.type for t in trained if (known := trace.model(t)) is not None}
    apart = forward.repeated is True and forward.fed is True
    return apart and model is not None and model.type is not None and model.type in kinds


def _walked(forward: Forward) -> bool:
    return forward.used is True or (forward.grad is True and forward.used is None)


def _trained(trace: Trace) -> set[str | None]:
    """The models that optimizers step; where that is not known, those whose output reaches a backward."""
    held: set[str | None] = set()
    for step in trace.of(Step):
        known = step.parameters or trace.held_by(step.optimizer)
        if not known:
            return {e.model for e in trace.of(Forward) if e.used}
        held |= set(known)
    return held


def _builds_for_nothing(forward: Forward) -> bool:
    """In eval mode, with a graph that nobody walks; where everything in the model is frozen there is none to build."""
    if forward.training is not False or forward.frozen:
        return False
    return forward.grad is True and forward.used is False


def _trains(tree: ast.AST) -> bool:
    return any(n.attr in _TRAINS for n in below(tree, ast.Attribute))


def _evaluates(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return _EVALUATES.search(function.name) is not None or "eval" in methods_called(function)


def _evaluation_loop(module: Module, statement: ast.stmt) -> ast.stmt | None:
    """The outermost loop around the call that trains nothing; the statement itself outside any loop that trains."""
    found: ast.stmt | None = None
    for up in module.parents(statement):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            break
        if isinstance(up, ast.For | ast.While):
            if _trains(up):
                break
            found = up
    return found
