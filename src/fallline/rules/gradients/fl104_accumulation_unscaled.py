"""FL104: k backward passes feed one step and nothing is divided by k."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.events import (
    UNSEEN_LOSS,
    Backward,
    Clip,
    Forward,
    GradWrite,
    Optimizer,
    Trace,
    Window,
    scale_free,
    windows,
)
from fallline.finding import Finding, Fix, Severity
from fallline.flow.accumulated import never_divided
from fallline.flow.divisions import added_undivided, items_ignored
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Editor, Module

__all__ = ["AccumulationUnscaled"]


class AccumulationUnscaled(Rule):
    code = "FL104"
    name = "accumulation-unscaled"
    severity = Severity.ERROR
    what = (
        "Finds accumulation of mean losses that are never divided: k backward passes of one loss feed one step, and neither the "
        "loss nor the gradient is divided by k."
    )
    why = (
        "`backward()` adds. The gradient of k micro-batches is k times that of one big batch, so an SGD update is k "
        "times too large: a hidden learning rate. Adam and AdamW divide the factor out again, and a clip that takes effect on every update "
        "hides it, but logged norms and clip thresholds are still k times off. So it is an error with SGD, a note with Adam and similar optimizers, and a warning where the optimizer is not in view."
    )
    instead = "Divide the loss by the number of micro-batches:\n\n```python\n(loss / accumulation_steps).backward()\n```"
    fix_safety = "Only the value given to `backward()` is divided; the logged loss stays as it was. Divides by the count that the boundary test or the loop names."
    facts = ("unscaled-accumulation-by-optimizer", "equal-micro-batches-are-exact")
    tokens = (b"backward", b"num_items_in_batch")

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("divide"):
            return
        for window in windows(trace):
            # A backward says itself whether a framework has divided it; where it does not, the framework's step has to do.
            owned = not trace.live and window.optimizer in trace.by_framework
            known = all(b.window == 1 for b in window.micro)
            if not window.micro or (owned and not known) or not _unscaled(window):
                continue
            first, step = window.micro[0], window.step
            # On paper the number of micro-batches is the reader's choice, not the program's.
            evidence: dict[str, Any] = {"micro_batches": len(window.micro)} if trace.live else {}
            related = {"step": step.at}
            if step.boundary is not None:
                related["boundary"] = step.boundary
            yield self.finding(
                first,
                f"The loss is accumulated over {_how_many(trace, window)} micro-batches but never divided by their number, so "
                f"{_harm(trace, window)}. {_remedy(first)}",
                severity=_severity(trace, window),
                related=related,
                presuming=first.presumed,
                **evidence,
            )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """The Trainer is the loop: a loss that counts the tokens of the window, and a term that does not."""
        for statement in added_undivided(module):
            yield self.finding(
                module.location(statement),
                "The loss is divided by the tokens of the whole accumulation window (`num_items_in_batch`) and the Trainer does not divide again, so this term is added in "
                "full on every micro-batch and weighs that many times too much. Scale it by this micro-batch's share of the tokens.",
                severity=Severity.WARNING,
            )

        for method in items_ignored(module):
            yield self.finding(
                module.location(method),
                "This compute_loss() ignores `num_items_in_batch`. If the model's forward() takes **kwargs, the Trainer leaves the division to it, and nothing divides the "
                "loss by the accumulation steps. Set `self.model_accepts_loss_kwargs = False` after super().__init__(), and the Trainer divides.",
                severity=Severity.INFO,
            )

        for backward, count in never_divided(module):
            yield self.finding(
                module.location(backward),
                f"The loss is accumulated until `{count}` micro-batches are there, and nothing in this file divides it by their number. Divide it: `(loss / {count}).backward()`.",
                severity=Severity.INFO,
                presuming="the loss is a mean, and is not divided where it is computed",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        line = finding.at.line
        calls = module.method_calls("backward")
        call = next((c for c in calls if c.lineno <= line <= (c.end_lineno or c.lineno)), None)
        count = _count(module, call, finding) if call is not None else None
        if call is None or count is None:
            return None
        match call.func:
            case ast.Attribute(ast.Call(ast.Attribute(attr="scale"), [loss, *_])):
                text = f"{_operand(module, loss)} / {count}"  # scaler.scale(loss): the scale stays outermost
            case ast.Attribute(loss):
                text = f"({_operand(module, loss)} / {count})"
            case _:
                return None
        edit = Editor(module).replace(loss, text)
        return Fix("Divide the loss by the number of micro-batches", (edit,))

    wrong = (
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y)
        loss.backward()  # FL104
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        SETUP
        + """

def train(model, loader, optimizer, micro_batches):
    batches = iter(loader)
    for update in range(len(loader) // micro_batches):
        optimizer.zero_grad(set_to_none=True)
        for micro in range(micro_batches):
            x, y = next(batches)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()  # FL104
        optimizer.step()


for epoch in range(2):
    train(model, loader, optimizer, micro_batches=3)
""",
        SETUP
        + """

class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.MSELoss()
        self.every = 2

    def backward(self, x, y):
        loss = self.criterion(self.model(x), y)
        loss.backward()  # FL104
        return loss.detach()

    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.backward(x, y)
            if i % self.every == self.every - 1 or i == len(loader) - 1:
                self.optimizer.step()
                self.optimizer.zero_grad()


trainer = Trainer(model, 1e-3)
for epoch in range(2):
    trainer.fit(loader)
""",
    )
    right = (
        SETUP
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
        # two different losses of one update
        SETUP
        + """
discriminator = nn.Linear(1, 1)
optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        real = criterion(discriminator(y), torch.ones(len(y), 1))
        real.backward()
        fake = criterion(discriminator(model(x).detach()), torch.zeros(len(y), 1))
        fake.backward()
        optimizer.step()
""",
        # the gradient is divided once, before the step
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            for parameter in model.parameters():
                parameter.grad /= accumulation_steps
            optimizer.step()
            optimizer.zero_grad()
""",
        # a sum over samples, divided by the number of all samples of the window
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.split(2), y.split(2)):
            loss = nn.functional.mse_loss(model(small_x), small_y, reduction="sum") / len(x)
            loss.backward()
        optimizer.step()
""",
        # every n-th iteration does something else: no accumulation
        SETUP
        + """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        if i % 2 == 0:
            print("batch", i)
""",
        # generator every other batch: the critic's backward passes are not its micro-batches
        SETUP
        + """
critic = nn.Linear(1, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        critic_optimizer.zero_grad()
        (critic(model(x).detach()).mean() - critic(y).mean()).backward()
        critic_optimizer.step()
        if i % 2 == 0:
            optimizer.zero_grad()
            (-critic(model(x)).mean()).backward()
            optimizer.step()
""",
        # the features of the whole window are computed first: every loss is that of the whole window
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        pieces = x.split(4)
        with torch.no_grad():
            features = [model(piece) for piece in pieces]
        for j in range(len(pieces)):
            whole = torch.cat([*features[:j], model(pieces[j]), *features[j + 1 :]])
            loss_fn(whole, y).backward()
        optimizer.step()
""",
    )


def _unscaled(window: Window) -> bool:
    """Every micro-batch is a mean that is known not to be divided, and the gradient is not divided afterwards."""
    mean = all(
        b.divided is False and b.reduction == "mean" and not b.normalised for b in window.micro
    )
    writes = window.update.after(window.micro[0]).of(GradWrite)
    return mean and not any(w.rescales for w in writes) and not _cached(window)


def _cached(window: Window) -> bool:
    """The model first runs on all micro-batches without a gradient: each loss is then one of the whole window, with its own
    micro-batch's features put in with a graph, and their gradients have to be added (contrastive losses).
    """
    passes = [f for f in window.update.of(Forward) if f.training is not False]
    models = {f.model for f in passes if f.grad}
    ahead = [f for f in passes if f.grad is False and f.model in models]
    return len(ahead) >= len(window.micro) and ahead[-1].order < window.micro[0].order


def _severity(trace: Trace, window: Window) -> Severity:
    """An error where the step is known to be too large. Adam takes the same step, whatever is clipped before it: a note."""
    known = trace.object(Optimizer, window.optimizer)
    if known is not None and known.shared:
        return Severity.INFO  # the learning rate is divided instead
    if any(UNSEEN_LOSS in (b.presumed or "") for b in window.micro):
        return Severity.INFO
    kind = trace.type_of(window.optimizer)
    if scale_free(kind):
        return Severity.INFO
    # who made the optimizer is not in view: it may be Adam
    return Severity.ERROR if kind else Severity.WARNING


def _remedy(backward: Backward) -> str:
    if backward.driver == "transformers":
        # measured with transformers 5.22: twice the update for 2 micro-batches of BertForSequenceClassification
        return (
            "The Trainer assumes that this loss is already divided by `num_items_in_batch`, but neither the model nor the loss function "
            "does it: set `trainer.loss_is_scaled_for_ga = False`, and the Trainer divides."
        )
    return "Divide the loss by the number of micro-batches."


def _harm(trace: Trace, window: Window) -> str:
    kind = trace.type_of(window.optimizer)
    times = f"{len(window.micro)}×" if trace.live else "that many times"
    if scale_free(kind):
        return f"logged norms and clip thresholds are off by that factor ({kind} itself divides it out again)"
    hides = ", except where clipping takes effect" if window.update.of(Clip) else ""
    if kind == "SGD":
        return f"SGD's step is {times} too large{hides}"
    return f"with SGD the step is {times} too large{hides}; Adam divides the factor out again"


def _operand(module: Module, node: ast.expr) -> str:
    """The text of an expression, in brackets where `/` would bind tighter."""
    text = module.segment(node)
    match node:
        case ast.BinOp() | ast.IfExp() | ast.BoolOp() | ast.Compare() | ast.Lambda():
            return f"({text})"
        case ast.NamedExpr() | ast.UnaryOp():
            return f"({text})"
    return text


def _count(module: Module, call: ast.Call, finding: Finding) -> str | None:
    """The text that names the number of micro-batches at the backward."""
    boundary = finding.related.get("boundary")
    if boundary is not None and boundary.path == module.path:
        return _modulus(module, call, boundary.line)
    loop = module.enclosing(call, ast.For)
    step = finding.related.get("step")
    if loop is None or step is None or loop.lineno <= step.line <= (loop.end_lineno or loop.lineno):
        return None
    match loop.iter:
        case ast.Call(ast.Name("range"), [count]):
            return _operand(module, count)
    return None


def _how_many(trace: Trace, window: Window) -> str:
    return str(len(window.micro)) if trace.live else "several"


def _modulus(module: Module, call: ast.Call, line: int) -> str | None:
    """The `k` of `(i + 1) % k == 0` at the boundary, where it means the same at the backward."""
    found = [n for n in module.all(ast.BinOp) if isinstance(n.op, ast.Mod) and n.lineno == line]
    if len(found) != 1:
        return None
    count = found[0].right
    match count:
        case ast.Attribute(ast.Name("self")):  # means the same in every method
            return _operand(module, count)
    same = module.function(count) is module.function(call)
    return _operand(module, count) if same else None
