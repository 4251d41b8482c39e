"""FL118: backward runs but nothing ever uses the gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.events import (
    Backward,
    Batch,
    Epoch,
    GradRead,
    GradWrite,
    Loader,
    Model,
    Optimizer,
    Sampler,
    Step,
    Trace,
    ZeroGrad,
)
from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["GradientNeverUsed"]


_OPTIMIZER = re.compile(r"(?i)optim\w*$|(^|[._])opt(_\w+)?$")


class GradientNeverUsed(Rule):
    code = "FL118"
    name = "gradient-never-used"
    severity = Severity.WARNING
    yields_to = ("FL126", "FL306")
    what = "Finds `backward()` in a training loop whose gradients nothing uses: no optimizer steps, no update by hand, no hook, no gradient of an input."
    why = "The model does not learn: the loss is computed, differentiated and forgotten. Most often `optimizer.step()` is missing."
    instead = "Step the optimizer, or leave `backward()` out:\n\n```python\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\n```"
    tokens = (b"backward",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("step") or not trace.complete or trace.of(GradWrite, GradRead):
            return
        if any(e.optimizer is None and not e.parameters for e in trace.of(ZeroGrad)):
            return  # something clears that is not known: it may step as well
        for backward in trace.of(Backward).first_of_each():
            if _stepped(trace, backward) or not _whole_program(trace, backward):
                continue
            yield self.finding(
                backward,
                "Nothing uses the gradients of this backward(): no optimizer steps them and no code reads them, so the model does not learn "
                "from this loss. Call optimizer.step() after it, or remove it.",
                # which network an optimizer holds is not always seen, and where none is in view the gradients may be what is wanted
                severity=None
                if trace.live or (trace.objects_of(Optimizer) and not trace.of(Step))
                else Severity.INFO,
            )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """`optimizer.step`, `loss.backward`: a line that names the method and does not call it."""
        for statement in module.all(ast.Expr):
            match statement.value:
                case ast.Attribute(of, "step") if _OPTIMIZER.search(module.segment(of)):
                    what = "No update is made"
                case ast.Attribute(ast.Name(name), "backward") if name.lower().endswith("loss"):
                    what = "No gradient is computed"
                case _:
                    continue
            if module.function(statement) is None and module.path.endswith(".ipynb"):
                continue  # the last line of a cell shows what it names
            text = module.segment(statement.value)
            yield self.finding(
                module.location(statement),
                f"`{text}` is named but not called, so this line does nothing. {what}, and the model does not learn. Write `{text}()`.",
            )

        for function, optimizer in _unused_optimizers(module):
            yield self.finding(
                module.location(function),
                f"Nothing uses the gradients of this backward(): `{optimizer}` is handed over and never used, so the model does not learn from this loss. "
                f"Call {optimizer}.step() after it.",
                severity=Severity.WARNING,
            )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """Every backward whose gradients this setting does use, or may use."""
        shown = {str(f.at) for f in self.check(trace)}
        yield from (e.at for e in trace.of(Backward) if str(e.at) not in shown)

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()  # FL118
""",
        SETUP
        + """

def train(model, loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            model.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()  # FL118
            print(f"{loss.item():.3f}")


train(model, loader, 2)
""",
        # batches are made in the loop: no loader
        SETUP
        + """
for step in range(20):
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()  # FL118
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # an update by hand
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        loss_fn(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
""",
        # the gradient of the input is what was wanted
        SETUP
        + """
for x, y in loader:
    x.requires_grad_(True)
    loss_fn(model(x), y).backward()
    print(float(x.grad.abs().max()))
""",
        # a library function: whoever calls it steps
        SETUP
        + """

def accumulate(model, x, y):
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss.detach()


for epoch in range(2):
    for x, y in loader:
        accumulate(model, x, y)
        optimizer.step()
        optimizer.zero_grad()
""",
    )


_IS_OPTIMIZER = re.compile(r"(?i)^(\w+_)?(opt|optim|optimi[sz]er)$")


def _unused_optimizers(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """The backward of a function that runs a loop with a model, and the optimizer among its arguments that it never mentions."""
    for function in module.all(ast.FunctionDef):
        names = [a.arg for a in below(function.args, ast.arg) if _IS_OPTIMIZER.match(a.arg)]
        if len(names) != 1 or any(n.id == names[0] for n in below(function, ast.Name)):
            continue
        calls = below(function, ast.Call)
        backward = next((c for c in calls if last_name(c) == "backward"), None)
        looped = backward is not None and module.enclosing(backward, ast.For, ast.While)
        if backward is not None and looped and not any(last_name(c) == "step" for c in calls):
            yield backward, names[0]


def _stepped(trace: Trace, backward: Backward) -> bool:
    """Some optimizer may step what this backward reaches, at any time later."""
    reached = _with_parts(trace, backward.parameters or frozenset())
    for step in trace.of(Step):
        mine = trace.held_by(step.optimizer)
        if not reached or mine is None or not _with_parts(trace, mine).isdisjoint(reached):
            return True
    return False


def _with_parts(trace: Trace, sets: frozenset[str]) -> frozenset[str]:
    """These parameter sets, and those of the models inside: a trainer module holds the network that the optimizer steps."""
    inside = (model.parts or frozenset() for model in trace.objects_of(Model) if model.id in sets)
    return sets.union(*inside)


def _whole_program(trace: Trace, backward: Backward) -> bool:
    """The loop around this backward and the making of what it trains were seen: nobody else could step."""
    if trace.live:
        return True
    loops = bool(trace.before(backward).of(Batch, Epoch)) or _clears_and_repeats(trace, backward)
    trained = (o for o in trace.objects.values() if not isinstance(o, Loader | Sampler))
    return loops and not any(o.assumed for o in trained)


def _clears_and_repeats(trace: Trace, backward: Backward) -> bool:
    """A loop without a loader trains where an optimizer clears these gradients each time; a benchmark has none."""
    again = [b for b in trace.of(Backward) if b.at == backward.at]
    cleared = {z.optimizer for z in trace.of(ZeroGrad) if z.optimizer is not None}
    held = (trace.held_by(name) for name in cleared)
    mine = backward.parameters or frozenset()
    return len(again) > 1 and any(sets and not sets.isdisjoint(mine) for sets in held)
