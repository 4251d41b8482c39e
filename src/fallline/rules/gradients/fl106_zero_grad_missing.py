"""FL106: gradients are never cleared between updates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fallline.events import Event, Trace, Window, ZeroGrad, clears, is_habit, windows
from fallline.finding import Finding, Fix, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._moves import lone_statement, stepped
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Editor, Module

__all__ = ["ZeroGradMissing"]

# In at least this share of the updates old gradients are still there. Clearing once per epoch is as good as never.
_NEVER = 0.75


class ZeroGradMissing(Rule):
    code = "FL106"
    name = "zero-grad-missing"
    severity = Severity.ERROR
    what = "Finds training loops that never clear the gradients between one update and the next."
    why = "`backward()` adds to `.grad`. Without `zero_grad()` every update uses the sum of all gradients so far. With a constant gradient, updates 1 to 4 use 1, 2, 3 and 4 times that gradient, and old directions never go away."
    instead = "Clear once per update:\n\n```python\noptimizer.step()\noptimizer.zero_grad()\n```\n\n`model.zero_grad()` and setting `.grad = None` clear as well."
    fix_safety = "Adds `optimizer.zero_grad()` after the only step of that optimizer."
    facts = ("missing-zero-grad-grows",)
    tokens = (b"backward",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("clear"):
            return
        for mine, carried, apart in _carried(trace):
            if not is_habit(carried, _NEVER):
                if (again := _first_cleared_only(mine, carried)) is not None:
                    yield self._within_a_loop(again)
                continue
            mine = mine[carried.index(True) :]
            first, step = mine[0].alive[0], mine[0].step
            alone = len({str(w.step.at) for w in mine}) == 1 and not step.closure
            at = first.seen_from(step) if not step.closure else first.at
            there = step.seen_from(first).near(at)
            if step.closure:
                where = f"at the start of the closure of the step at {there}"
            elif alone and any(w.leaked for w in mine):
                # a different loss fills them again after the step: only here is early enough
                where, alone = (
                    f"of the optimizer that steps at {there} right before this backward",
                    False,
                )
            else:
                where = f"once per update, after the step at {there}"
            yield self.finding(
                at,
                "The gradients of this backward are never cleared, so each update adds the gradients of all earlier ones. Call "
                f"zero_grad() {where}.{_elsewhere(trace, at, step.optimizer)}",
                related={"step": step.at} if alone else {},
                presuming="the two optimizers hold different parameters" if apart else None,
            )
        yield from self._leaks(trace)

    def _within_a_loop(self, again: Window) -> Finding:
        own, step = again.alive[0], again.step
        return self.finding(
            own.seen_from(step),
            f"The step at {step.seen_from(own).near(own.at)} is taken several times in a row, and only the first of them begins with cleared gradients: each of the others "
            "adds to the gradients of those before it. Call zero_grad() before each backward.",
            severity=Severity.WARNING,
        )

    def _leaks(self, trace: Trace) -> Iterator[Finding]:
        """A GAN's discriminator that is cleared after its own step only, before the generator's backward goes through it."""
        for optimizer in trace.optimizers:
            mine = [w for w in windows(trace) if w.optimizer == optimizer and w.alive]
            if not _is_leaky(trace, mine):
                continue
            own, leaked = next((w.alive[0], w.leaked[-1]) for w in mine if w.leaked)
            yield self.finding(
                own,
                f"The backward at {leaked.seen_from(own).near(own.at)} also fills the gradients that this one adds to, and nothing clears them between the two, so this "
                "update mixes both losses. Call zero_grad() right before this backward.",
                severity=Severity.WARNING,
            )

    def check_series(self, run: Any) -> Iterator[Finding]:
        """Updates by hand: the gradients of each were still there, untouched, when the next backward began. And a step of LBFGS that is the only
        one: no event of a later one shows it."""
        for track in run.tracks:
            if track.facts.get("carried") and track.totals.get("updates", len(track.rows)) == 1:
                evaluations = track.facts.get("evaluations")
                yield self.finding(
                    track.loss_at,
                    f"The closure was evaluated {evaluations} times in one step and never cleared the gradients, so each evaluation adds to those of all earlier ones. "
                    f"Call zero_grad() at the start of the closure of the step at {track.at.near(track.loss_at)}.",
                    evaluations=evaluations,
                    rank=track.rank,
                )
            if updates := track.facts.get("uncleared"):
                yield self.finding(
                    track.loss_at,
                    f"The gradients of this backward are never cleared: in the first {updates} updates by hand they were all still there when the next backward "
                    f"added to them. Set them to None once per update, after the line that changes the parameters ({track.at.near(track.loss_at)}).",
                    updates=updates,
                    rank=track.rank,
                )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """Gradients that some setting clears are cleared on purpose in that one only."""
        for mine, carried, _ in _carried(trace):
            if not is_habit(carried, _NEVER) and _first_cleared_only(mine, carried) is None:
                whole = [w for w in mine if not w.leaked]
                yield from {b.seen_from(w.update.step) for w in whole[1:] for b in w.alive}

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        step = lone_statement(module, finding.related.get("step"))
        optimizer = stepped(step)
        if step is None or optimizer is None:
            return None
        text = f"{module.segment(optimizer)}.zero_grad()"
        return Fix("Clear the gradients after the step", (Editor(module).insert_after(step, text),))

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()  # FL106
        optimizer.step()
""",
        # the generator's backward goes through the discriminator, which was cleared before it
        SETUP
        + """
critic = nn.Linear(1, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        (critic(y) - critic(model(x).detach())).mean().backward()  # FL106
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        critic(model(x)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        SETUP
        + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def update(self, x, y):
        loss = loss_fn(self.model(x), y)
        loss.backward()  # FL106
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.update(x, y)


Trainer(model, optimizer).fit(loader, epochs=2)
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        model.zero_grad(set_to_none=True)
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # set to None by hand
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        for parameter in model.parameters():
            parameter.grad = None
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # one list of optimizers, cleared in a helper
        SETUP
        + """
head = nn.Linear(1, 1)
optimizers = [optimizer, torch.optim.SGD(head.parameters(), lr=0.01)]


def reset_gradients():
    for each in optimizers:
        each.zero_grad()


for epoch in range(2):
    for x, y in loader:
        reset_gradients()
        loss_fn(head(model(x)), y).backward()
        for each in optimizers:
            each.step()
""",
        # the closure clears
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
""",
    )


def _carried(trace: Trace) -> Iterator[tuple[list[Window], list[bool], bool]]:
    """For each optimizer its updates, whether the gradients of each are still there in the next, and whether that presumes that no other optimizer has them."""
    for optimizer in trace.optimizers:
        mine = [w for w in windows(trace) if w.optimizer == optimizer and w.alive]
        # live, an optimizer that calls its closure several times shows only the last clear
        closed = trace.live and any(w.step.closure for w in mine)
        # on paper a framework that clears by itself shows it; Accelerate leaves it to the program
        owned = trace.live and optimizer in trace.by_framework
        if len(mine) < 2 or closed or owned:
            continue
        own = [e.order for e in trace.events if clears(trace, e, optimizer)]
        others = [e.order for e in trace.events if _may_clear(trace, e, optimizer)]
        # two that are stepped, and only one of them is ever cleared
        apart = not own and bool(others) and not trace.live
        cleared = own if apart else sorted(own + others)
        yield mine, [not _any_between(cleared, u, v) for u, v in pairwise(mine)], apart


_RUNS = 2  # at least so many times


def _first_cleared_only(mine: list[Window], carried: list[bool]) -> Window | None:
    """The second update of a loop inside the loop that clears: `for _ in range(d_steps)`, always after the first of the same step and never after the last."""
    if len({str(w.step.at) for w in mine}) != 1 or mine[0].step.closure:
        return None
    begins = [0, *(i + 1 for i, kept in enumerate(carried) if not kept)]
    lengths = [end - begin for begin, end in pairwise([*begins, len(mine)])]
    whole = lengths[:-1]  # the end of the trace may cut the last one short
    if len(whole) < _RUNS or len(set(whole)) != 1 or whole[0] < 2:
        return None
    return mine[1]


def _elsewhere(trace: Trace, at: Location, optimizer: str | None) -> str:
    """What the zero_grad() that people do see clears instead."""
    lends = next((z for z in trace.of(ZeroGrad) if z.keeps), None)
    if lends is not None:
        return (
            f" The zero_grad() at {lends.at.near(at)} does not clear them: it sets the gradients of the parameters that are stepped to None, while the model "
            "that computed them keeps its own. Call zero_grad() of that model."
        )
    other = trace.of(ZeroGrad).first
    if other is None:
        return ""
    held = trace.optimizer(other.optimizer) or trace.model(other.model)
    mine = trace.optimizer(optimizer)
    if mine is not None and held is not None and mine.type == held.type:
        whose = "those of a different optimizer"
    else:
        whose = f"those of the {held.type}" if held is not None and held.type else "others"
    return f" The zero_grad() at {other.at.near(at)} clears {whose}."


def _is_leaky(trace: Trace, mine: list[Window]) -> bool:
    """Most updates of an optimizer, after its first, begin with gradients of another one's loss."""
    return len(mine) > 2 and is_habit([_leaks_into(trace, w) for w in mine[1:]], _NEVER)


def _leaks_into(trace: Trace, window: Window) -> bool:
    """Gradients of another optimizer's loss are still there, and the losses of this one are about its own parameters alone."""
    held = trace.held_by(window.optimizer)
    if held is None or not window.leaked:
        return False
    alone = all(b.parameters is not None and b.parameters <= held for b in window.alive)
    through = all(b.parameters is not None and not b.parameters <= held for b in window.leaked)
    return alone and through


def _may_clear(trace: Trace, event: Event, optimizer: str | None) -> bool:
    """Another optimizer clears what it holds, and nobody knows what these two hold."""
    if not isinstance(event, ZeroGrad) or event.optimizer in (None, optimizer):
        return False
    return trace.held_by(optimizer) is None or trace.held_by(event.optimizer) is None


def _any_between(cleared: list[int], one: Window, following: Window) -> bool:
    """Cleared between the last backward of one update and the last of the next."""
    after = bisect_right(cleared, one.alive[-1].order)
    return after < len(cleared) and cleared[after] < following.alive[-1].order
