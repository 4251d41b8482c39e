"""FL119: clipping around LBFGS.step(closure), which computes the gradients again."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Clip, Trace, Update, owners
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

__all__ = ["ClipOutsideClosure"]


class ClipOutsideClosure(Rule):
    code = "FL119"
    name = "clip-outside-closure"
    severity = Severity.ERROR
    what = "Finds clipping before or after `optimizer.step(closure)`, outside the closure."
    why = (
        "`step(closure)` calls the closure, which clears the gradients and computes them again; LBFGS does so several times. A clip outside it "
        "works on gradients that no update uses: the parameters are the same with and without it."
    )
    instead = (
        "Clip inside the closure, after backward. Not for LBFGS: a clip that binds falsifies the curvature it estimates; "
        'give it `line_search_fn="strong_wolfe"`, which bounds the step.\n\n'
        "```python\ndef closure():\n    optimizer.zero_grad()\n    loss = loss_fn(model(x), y)\n    loss.backward()\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    return loss\n```"
    )
    facts = ("lbfgs-recomputes",)
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for update in trace.updates:
            if not update.step.closure:
                continue
            for clip in (*update.of(Clip), *(e for e in update.trail if isinstance(e, Clip))):
                if (
                    _outside(update, clip)
                    and not clip.measures_only
                    and update.optimizer in owners(trace, clip)
                ):
                    yield self.finding(
                        clip,
                        f"step(closure) at {update.step.at.near(clip.at)} computes the gradients again inside the closure, so a clip outside it "
                        f"changes nothing. {_remedy(trace, update)}",
                        related={"step": update.step.at},
                    )

    wrong = (
        SETUP
        + """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss


for epoch in range(2):
    for x, y in loader:
        optimizer.step(closure)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL119
""",
        SETUP
        + """

def fit(model, x, y, rounds):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        return loss

    for round in range(rounds):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL119
        optimizer.step(closure)


fit(model, torch.randn(24, 8), torch.randn(24, 1), 4)
""",
    )
    right = (
        SETUP
        + """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


for epoch in range(2):
    for x, y in loader:
        optimizer.step(closure)
""",
        # no closure: clip between backward and step
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
        # the norm is only measured after the step
        SETUP
        + """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
for epoch in range(2):
    for x, y in loader:

        def closure():
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
""",
    )


def _remedy(trace: Trace, update: Update) -> str:
    if trace.type_of(update.optimizer) == "LBFGS":
        return 'Remove it, and bound LBFGS with line_search_fn="strong_wolfe": clipped gradients would falsify the curvature it estimates.'
    return "Clip inside the closure, after backward()."


def _outside(update: Update, clip: Clip) -> bool:
    """Known to be outside the closure; where no fact says so, by the function it is written in."""
    if clip.closure is not None:
        return not clip.closure
    backwards = update.backwards
    return bool(backwards) and all(b.at.function != clip.at.function for b in backwards)
