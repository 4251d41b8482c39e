"""FL105: zero_grad between a backward and the step that should use it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import (
    Backward,
    Epoch,
    EpochEnd,
    Forward,
    GradRead,
    GradWrite,
    Opaque,
    Trace,
    Window,
    Wipe,
    ZeroGrad,
    acting,
    habits,
    windows,
)
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.gradients._moves import lone_statement, move_to
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["AccumulationWiped"]


class AccumulationWiped(Rule):
    code = "FL105"
    name = "accumulation-wiped"
    severity = Severity.ERROR
    yields_to = ("FL107",)
    what = (
        "Finds `zero_grad()` between a `backward()` and the step that should use it: inside an accumulation window, or just "
        "before the step."
    )
    why = (
        "What backward produced is thrown away. Inside an accumulation only the last micro-batch counts, and it is divided by k on "
        "top. Just before the step nothing counts: the model does not learn at all."
    )
    instead = "Clear after the step, or before the first backward of the window:\n\n```python\noptimizer.step()\noptimizer.zero_grad()\n```"
    fix_safety = "`zero_grad()` moves after the step, when both are in one block or the step is in an `if` of that block."
    facts = ("zero-grad-inside-window",)
    tokens = (b"zero_grad", b".grad", b"deepspeed")

    def check(self, trace: Trace) -> Iterator[Finding]:
        # who decides when a window ends may clear inside it; where nothing is left for the step, nobody meant that
        mine = [
            w
            for w in windows(trace)
            if w.optimizer not in trace.by_framework or (w.wiped and not w.alive)
        ]
        wiped = ((w, wipe.clear) for w in mine for wipe in w.wiped if _by_mistake(trace, w, wipe))
        for window, clear in habits(wiped, mine):
            yield self._report(window, next(w for w in window.wiped if w.clear is clear))

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """DeepSpeed counts its micro-batches in `engine.step()`: a loop that calls it once a window makes each backward a window of its own."""
        if "deepspeed" not in module.source.text or "accumulation_boundary" in module.source.text:
            return
        engines = _engines(module)
        for call in module.method_calls("backward"):
            engine = module.segment(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if engine in engines and _steps_once_a_window(module, call, engine):
                yield self.finding(
                    module.location(call),
                    f"DeepSpeed counts micro-batches in `{engine}.step()`, which is called once a window here, so it takes every backward for the last one of its window and keeps "
                    f"only those gradients. Call `{engine}.step()` after every backward, or tell it with `set_gradient_accumulation_boundary`.",
                    presuming="ZeRO shards the gradients (stage 1 or 2)",
                )

    def _report(self, window: Window, wipe: Wipe) -> Finding:
        at, step, lost = wipe.clear.at, window.step.at, wipe.lost[-1].at
        if window.alive:
            message = (
                "Gradients are cleared on every micro-batch, so only the last micro-batch of each window reaches the step at "
                f"{step.near(at)}. Clear once per update, after the step."
            )
        else:
            message = (
                f"The gradients of the backward at {lost.near(at)} are cleared before the step at {step.near(at)} can use them, so "
                "it steps without gradients. Clear after the step, or before backward()."
            )
        return self.finding(at, message, related={"step": step, "backward": lost})

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        clear = lone_statement(module, finding.at)
        step = lone_statement(module, finding.related.get("step"))
        lost = finding.related.get("backward")
        if clear is None or step is None:
            return None
        if lost is not None and lost.path == module.path and lost.line > step.lineno:
            return None  # the step itself is in the wrong place, before its backward
        edits = move_to(module, clear, step, before=False)
        return Fix("Clear the gradients after the step", edits) if edits else None

    wrong = (
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()  # FL105
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
""",
        SETUP
        + """

def train_step(x, y):
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # FL105
    optimizer.step()
    return loss.item()


for epoch in range(2):
    for x, y in loader:
        train_step(x, y)
""",
        SETUP
        + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader, every=2):
        for i, (x, y) in enumerate(loader):
            loss = loss_fn(self.model(x), y) / every
            loss.backward()
            if (i + 1) % every == 0 or i + 1 == len(loader):
                self.optimizer.step()
            self.model.zero_grad()  # FL105


trainer = Trainer(model, optimizer)
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
        # an adversarial step uses the first gradients, then clears them
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        x.requires_grad_(True)
        loss_fn(model(x), y).backward()
        attacked = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        loss_fn(model(attacked), y).backward()
        optimizer.step()
""",
        # sharpness-aware minimisation: climb with the first gradients, step with the second ones
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        moved = []
        with torch.no_grad():
            for p in model.parameters():
                climb = 0.05 * p.grad / (p.grad.norm() + 1e-6)
                p.add_(climb)
                moved.append((p, climb))
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        with torch.no_grad():
            for p, climb in moved:
                p.sub_(climb)
        optimizer.step()
""",
        # each network clears its own gradients, which the other's loss leaked into
        SETUP
        + """
critic = nn.Linear(1, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        critic(model(x)).mean().backward()
        optimizer.step()
        critic_optimizer.zero_grad()
        (critic(y) - critic(model(x).detach())).mean().backward()
        critic_optimizer.step()
""",
    )


def _engines(module: Module) -> set[str]:
    """The names and attributes that hold what `deepspeed.initialize` returns first."""
    found = set()
    for call in module.calls("deepspeed.initialize"):
        match module.parent(call):
            case ast.Assign([ast.Tuple([first, *_]) | ast.List([first, *_])]):
                found.add(module.segment(first))
    return found


def _steps_once_a_window(module: Module, backward: ast.Call, engine: str) -> bool:
    """`if (i + 1) % k == 0: engine.step()` in the loop of a backward that is not under that test."""
    loop = module.enclosing(backward, ast.For, ast.While)
    steps = [
        c
        for c in module.method_calls("step")
        if isinstance(c.func, ast.Attribute)
        and module.segment(c.func.value) == engine
        and module.enclosing(c, ast.For, ast.While) is loop is not None
    ]
    tests = [module.enclosing(step, ast.If) for step in steps]
    return bool(tests) and all(
        test is not None
        and backward not in ast.walk(test)
        and any(isinstance(n, ast.Mod) for n in ast.walk(test.test))
        for test in tests
    )


def _by_mistake(trace: Trace, window: Window, wipe: Wipe) -> bool:
    """Gradients lost that nobody had used, where the step then misses them."""
    clear = wipe.clear
    if not isinstance(clear, ZeroGrad) or not _certain(trace, clear):
        return False
    if _left_over(trace, window, wipe):
        return False  # FL107
    if window.alive and clear.boundary not in (None, window.step.boundary):
        return False  # now and then, for a reason of its own: before every validation
    if 1 < len(wipe.lost) == len(window.alive):
        return False  # a whole window is dropped in place of its step: a loss that jumped, a gradient that is not finite
    lost = _missed(trace, window, wipe)
    if not lost or lost[-1] is not wipe.lost[-1]:
        return False  # cleared after something else: a dry run, an attack, a penalty
    if trace.between(lost[0], window.step).of(GradWrite, Opaque):
        return False
    if any(read.what in ("use", "input") for read in trace.between(lost[0], clear).of(GradRead)):
        return False  # SAM, FGSM, gradients collected by hand
    return not trace.between(lost[-1], clear).of(Epoch, EpochEnd)  # an epoch's remainder is FL107


def _left_over(trace: Trace, window: Window, wipe: Wipe) -> bool:
    """A full window follows, and what was cleared is less than one: the end of the data, where no loader shows it."""
    if not trace.live or not 0 < len(wipe.lost) < len(window.alive):
        return False
    others = (w for w in windows(trace) if w.optimizer == window.optimizer and not w.wiped)
    return any(len(w.alive) == len(window.alive) for w in others)


def _made_at(trace: Trace, backward: Backward) -> object:
    """Where the forward pass was that a micro-batch's backward under no_sync, and the one after it, go back through.

    People write that backward twice, in the two branches of `if (step + 1) % k == 0`.
    """
    if backward.no_sync is None:
        return None
    forward = trace.before(backward).of(Forward).first
    return (forward.at, forward.callers) if forward is not None else None


def _certain(trace: Trace, clear: ZeroGrad) -> bool:
    """A zero_grad() of an optimizer or a model. `.grad = None` on chosen parameters is how people freeze layers."""
    if clear.optimizer is None and clear.model is None:
        return False
    known = clear.optimizer is not None or bool(clear.parameters)
    return known or len(acting(trace, clear)) == 1


def _missed(trace: Trace, window: Window, wipe: Wipe) -> list[Backward]:
    """The cleared backward passes whose gradients the step should have had."""
    if not window.alive:
        return wipe.lost if wipe is window.wiped[-1] else []
    kept = {b.loss for b in window.alive}
    made = {_made_at(trace, b) for b in window.alive} - {None}
    return [b for b in wipe.lost if b.loss in kept or _made_at(trace, b) in made]
