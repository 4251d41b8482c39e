"""FL804 eval-not-restored: training continues in eval mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from fallline.events import Backward, Forward, Mode, Step, Trace
from fallline.finding import Finding, Severity
from fallline.flow.interrupted import evaluations_left_on, left_on_by_a_method
from fallline.rule import Rule
from fallline.syntax import Module


class EvalNotRestored(Rule):
    code = "FL804"
    name = "eval-not-restored"
    severity = Severity.ERROR
    what = "`model.eval()` is called for an evaluation, and training continues without `model.train()`."
    why = (
        "In eval mode dropout does nothing and BatchNorm uses its running statistics without updating them. Every update after the first "
        "evaluation trains a different model from the one you meant, and nothing says so."
    )
    instead = "Call `model.train()` at the top of every training epoch (and after every evaluation inside it)."
    references = (
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
    )
    tokens = (b"eval(", b".train()")

    wrong = (
        """\
import itertools

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = itertools.cycle(torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8))
model.train()
step = 0
while step < 12:
    optimizer.zero_grad()
    loss = model(next(batches)).pow(2).mean()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 5 == 0:
        model.eval()  # FL804
        with torch.no_grad():
            print(model(next(batches)).mean())
""",
        """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)
val = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), batch_size=8)

for epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()  # FL804
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(x), y).item() for x, y in val)
    print(epoch, total)
""",
        """\
import torch
from torch import nn

# The evaluation before the first epoch leaves eval mode on.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
model.eval()  # FL804
with torch.no_grad():
    print("before training", sum(model(x).mean().item() for x in loader))
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn


def evaluate(model, loader):
    model.eval()  # FL804
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y).item()
    return total / len(loader)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model.train()
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, evaluate(model, loader))


main()
""",
        """\
import torch
from torch import nn

# Fine-tuning with the whole model in eval mode from the start may be a choice: a note.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
model.eval()  # FL804
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    for x in loader:
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


# It is the part with the dropout that goes back into train mode.
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)


torch.manual_seed(0)
model = Wrapped()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(3):
    model.net.train()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(model(x).pow(2).mean().item() for x in loader))
""",
        """\
import torch
from torch import nn


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(nn.functional.mse_loss(model(x), y).item() for x, y in loader)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
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
import copy

import torch
from torch import nn

# A teacher and an average of the weights stay in eval mode on purpose.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
teacher = nn.Linear(4, 1)
teacher.eval()
average = copy.deepcopy(model)
average.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    for x in loader:
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.01)
""",
        """\
import torch
from torch import nn
from models import build

# The discriminator rests in eval mode while the segmenter, whose making is not seen, learns from it.
torch.manual_seed(0)
segmenter = build("unet")
discriminator = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(segmenter.parameters(), lr=0.01)
adversary = torch.optim.Adam(discriminator.parameters())
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for epoch in range(2):
    for x in loader:
        segmenter.train()
        discriminator.eval()
        loss = discriminator(segmenter(x)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        segmenter.eval()
        discriminator.train()
        with torch.no_grad():
            made = segmenter(x)
        loss = discriminator(made).pow(2).mean()
        adversary.zero_grad()
        loss.backward()
        adversary.step()
""",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        trained: set[str] = set()  # models that an update was already made for in train mode
        evaluated: set[str] = set()  # models that were called without gradients since their eval()
        evaluating: dict[str, Mode] = {}  # model → the eval() that is in force
        suspects: dict[
            str, Mode
        ] = {}  # model → the eval() under which a forward reached a backward
        looked_at = _looked_at(trace)
        own: set[str] = set()  # those whose eval() the function that trains them begins with
        for event in trace.of(Mode, Forward, Step):
            match event:
                case Mode(model=str(owner), mode="eval") if not event.chosen:
                    for model in trace.within(owner):
                        evaluating.setdefault(model, event)
                        # eval() once more, right before training, is meant: a linear probe
                        evaluated.discard(model)
                case Mode(model=str(owner)):
                    for model in trace.within(owner):
                        evaluating.pop(model, None)
                        suspects.pop(model, None)
                        evaluated.discard(model)
                case Forward(model=str(model), grad=False) if model in evaluating:
                    evaluated.add(model)
                case Forward(model=str(model)) if event.used and event.grad is not False:
                    if model not in evaluating and event.training is not False:
                        trained.add(model)
                    elif model in evaluating and event.training is not True:
                        # eval() before the loop may be a choice, unless it was called for an evaluation there
                        if model in trained or model in evaluated:
                            suspects[model] = evaluating[model]
                            begins = model not in trained and model in looked_at
                            if begins and _is_own(evaluating[model], event):
                                own.add(model)
                case Step():
                    for model in [m for m in suspects if _steps(trace, event, m)]:
                        found = self._not_restored(trace, suspects.pop(model), model, event)
                        weak = model in own or _is_one_of_several(trace, event, model)
                        yield replace(found, severity=Severity.INFO) if weak else found
        yield from self._from_the_start(trace)

    def _from_the_start(self, trace: Trace) -> Iterator[Finding]:
        """One eval() before the loop and never train(): a choice for loaded weights, a slip for new ones, so it is worth a line."""
        modes = [mode for mode in trace.of(Mode) if mode.model is not None]
        never = {mode.model for mode in modes} - {m.model for m in modes if m.mode != "eval"}
        for mode in modes:
            model = trace.model(mode.model) if mode.model in never else None
            if model is None or not model.has_mode:
                continue
            passes = [e for e in trace.after(mode).of(Forward) if e.model == mode.model]
            trains = any(e.used and e.grad is not False and e.training is not True for e in passes)
            before = any(e.model == mode.model for e in trace.before(mode).of(Forward))
            if trains and not before and all(e.grad is not False for e in passes):
                steps = (s for s in trace.after(mode).of(Step) if _steps(trace, s, str(mode.model)))
                if (step := next(steps, None)) is not None:
                    never.discard(mode.model)
                    yield self.finding(
                        mode,
                        "The model is trained in eval mode from the start: dropout is off, and BatchNorm keeps the statistics it has. "
                        "If you did not mean that, call train() before the loop.",
                        severity=Severity.INFO,
                        related={"step": step.at},
                    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """An evaluation every so many steps: too late for the steps that are read."""
        for home, rests, call in evaluations_left_on(module):
            if _in_a_mode(module, call):
                continue
            yield self.finding(
                home.location(rests),
                f"eval() is still in effect when training continues: the loop that calls this at {module.location(call).near(home.location(rests))} sets train mode only "
                "before it begins, so dropout is off and BatchNorm is frozen from here on. Call train() after the evaluation.",
                severity=Severity.WARNING,
                related={"call": module.location(call)},
            )

        for rests, part in left_on_by_a_method(module):
            yield self.finding(
                module.location(rests),
                f"eval() stays in effect after this method: the class trains `self.{part}` and sets train mode only when it is set up, so after the first evaluation "
                "dropout is off and BatchNorm is frozen. Call train() at the end of this method.",
                severity=Severity.INFO,
                presuming="it is called between training steps, and the caller does not set the mode",
            )

    def _not_restored(self, trace: Trace, mode: Mode, name: str, step: Step) -> Finding:
        model = trace.model(name)
        has_mode = model.has_mode if model is not None else None
        return self.finding(
            mode,
            f"eval() is still in effect when training continues{_after(mode, step)}, so dropout is off and BatchNorm is frozen from here on. Call train() before the next update."
            if has_mode is not False
            else "eval() is still in effect when training continues. This model has neither dropout nor BatchNorm, so it does no harm yet. "
            "Call train() before the next update.",
            severity=Severity.INFO
            if has_mode is False
            else None
            if has_mode or trace.live
            else Severity.WARNING,
            related={"step": step.at},
        )


def _after(mode: Mode, step: Step) -> str:
    """The call that evaluates, where a function of its own sets the mode."""
    call = next((c for c in mode.callers if c not in step.callers), None)
    return f" after the call at {call.near(mode.at)}" if call is not None else ""


def _looked_at(trace: Trace) -> set[str]:
    """Models that are called without gradients again once they were trained: the loop itself looks at them, and no evaluation before it."""
    trained: set[str] = set()
    again: set[str] = set()
    for event in trace.of(Forward):
        if event.model is not None and event.grad is False:
            again |= trained & {event.model}
        elif event.model is not None and event.used:
            trained.add(event.model)
    return again


def _is_own(mode: Mode, forward: Forward) -> bool:
    """`def train(...): model.eval()`, then the loop: a choice, even where the loop also looks at the model without gradients."""
    return bool(mode.at.function) and mode.at.function == forward.at.function


def _in_a_mode(module: Module, call: ast.AST) -> bool:
    """`with eval_mode(model):` around the call puts the mode back."""
    around = (up for up in module.parents(call) if isinstance(up, ast.With))
    written = (module.segment(item.context_expr) for up in around for item in up.items)
    return any(re.search(r"(?i)eval|train|mode(?!l)", text) for text in written)


def _steps(trace: Trace, step: Step, model: str) -> bool:
    """Whether this step updates that model.

    Unknown counts as yes, since its output reached a backward, unless another optimizer is the one that holds it: a
    critic rests in eval mode while its generator learns.
    """
    if _of_tensors(trace, step):
        return False
    held = step.parameters or trace.held_by(step.optimizer)
    mine = trace.sets_of(model)
    if held:
        return not mine.isdisjoint(held)
    walked = [e.parameters for e in trace.before(step).until(Step).of(Backward)]
    if walked and all(reached and mine.isdisjoint(reached) for reached in walked):
        return False  # what is fixed gets no gradient
    others = [other for other in trace.optimizers if other != step.optimizer]
    if any(not mine.isdisjoint(trace.held_by(other) or ()) for other in others):
        return False
    return not others or _stays(trace, step, model)


def _is_one_of_several(trace: Trace, step: Step, model: str) -> bool:
    """The loss went through other models too, and which of them this optimizer holds is not seen: the one at rest may be what is attacked or explained."""
    if step.parameters or trace.held_by(step.optimizer):
        return False
    mine = trace.sets_of(model)
    before = trace.before(step).until(Step).of(Forward)
    used = {str(e.model) for e in before if e.used and e.grad is not False and not e.frozen}
    return any(other != model and mine.isdisjoint(trace.sets_of(other)) for other in used)


def _of_tensors(trace: Trace, step: Step) -> bool:
    """`RMSprop([vertices])`: it moves a tensor of its own through a model that does not learn."""
    known = trace.optimizer(step.optimizer)
    return known is not None and known.loose is True


def _stays(trace: Trace, step: Step, model: str) -> bool:
    """Among several optimizers that may hold it: the model is called again before anybody sets it to train mode."""
    later = trace.after(step).of(Mode, Forward).where(lambda e: e.model == model)
    return isinstance(later.first, Forward)
