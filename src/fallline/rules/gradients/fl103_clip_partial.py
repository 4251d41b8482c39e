"""FL103: clipping on every micro-batch of an accumulation instead of once on the sum."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Clip, Trace, owners, position, windows
from fallline.finding import Finding, Fix, Severity
from fallline.flow.accumulated import clipped_every_time
from fallline.flow.options import stays
from fallline.rule import Rule
from fallline.rules.gradients._moves import moved_before_step
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ClipPartial"]


class ClipPartial(Rule):
    code = "FL103"
    name = "clip-partial"
    severity = Severity.ERROR
    what = "Finds gradient clipping that runs on every micro-batch of an accumulation, on a sum that is not complete yet."
    why = (
        "Each call shrinks the sum so far, so early micro-batches count less than late ones. Where the clip takes effect, the update "
        "has a different direction from one that is clipped once. It is harmless only if it never takes effect."
    )
    instead = (
        "Clip once, on the complete sum, right before the step:\n\n"
        "```python\nif (i + 1) % accumulation_steps == 0:\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n```"
    )
    fix_safety = "The clip moves to the step inside the boundary test of the same block."
    facts = ("clip-each-micro-batch",)
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        early = {str(c.at) for c in trace.of(Clip).first_of_each() if _came_early(trace, c)}
        for window in windows(trace):
            if window.step.closure:
                continue
            for clip in window.inside.of(Clip):
                mine = window.optimizer in owners(trace, clip)
                if mine and not clip.measures_only and str(clip.at) not in early:
                    yield self.finding(
                        clip,
                        "Gradients are clipped after every micro-batch, while they are still being added up, so early micro-batches count less whenever "
                        f"the clip takes effect. Clip once, right before the step at {window.step.at.near(clip.at)}.",
                        related={"step": window.step.at},
                    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """Where objects arrive in ways that cannot be followed, the test of the count says what the loop is."""
        for clip, count in clipped_every_time(module):
            yield self.finding(
                module.location(clip),
                f"Gradients are clipped after every micro-batch, while they are still being added up until `{count}` is reached. Clip once, under the same test as the step.",
                severity=Severity.INFO
                if stays((module,), count.rpartition(".")[2], 1)
                else Severity.WARNING,
                presuming="the count is not 1",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        return moved_before_step(module, finding, "Clip once, right before the step")

    wrong = (
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL103
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        SETUP
        + """

def train(model, loader, optimizer, pieces):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.chunk(pieces), y.chunk(pieces)):
            loss = loss_fn(model(small_x), small_y) / pieces
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # FL103
        optimizer.step()


for epoch in range(2):
    train(model, loader, optimizer, 2)
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
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
        # the norm of the growing sum is only measured
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        # per-sample clipping (as DP-SGD does) clips each gradient alone and adds them up by hand
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in range(len(x)):
            optimizer.zero_grad()
            loss_fn(model(x[i : i + 1]), y[i : i + 1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for kept, p in zip(total, model.parameters()):
                kept += p.grad
        for kept, p in zip(total, model.parameters()):
            p.grad = kept / len(x)
        optimizer.step()
""",
        # a clip and a step for each batch, no accumulation
        SETUP
        + """
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (i + 1) % 2 == 0:
            print("batch", i + 1)
""",
    )


def _came_early(trace: Trace, clip: Clip) -> bool:
    """A clip that first runs before any backward is misplaced altogether (FL102), not partial."""
    return any(position(trace, clip, o)[0] == "before" for o in owners(trace, clip))
