"""FL107: the micro-batches left over at the end of the data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fallline.events import Event, Kind, Trace
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules._places import seen_from
from fallline.rules.gradients._specimens import SETUP
from fallline.rules.gradients._windows import (
    Window,
    clears,
    earlier,
    later,
    same_loss,
    steps_by_framework,
    windows,
)

__all__ = ["AccumulationRemainder"]


class AccumulationRemainder(Rule):
    code = "FL107"
    name = "accumulation-remainder"
    severity = Severity.WARNING
    what = (
        "Finds accumulation that forgets the micro-batches left over at the end of the data: dropped, carried into the next "
        "epoch, or stepped with a divisor that is too large (info)."
    )
    why = (
        "Dropped micro-batches are never learned from, and with a fixed order they are the same ones in every epoch. Carried over, the "
        "first update of the next epoch has (r + k) / k of its weight. Stepped but divided by k "
        "instead of by their own count, they count 0.25, 0.50 or 0.75 of what they should for r = 1, 2, 3 of k = 4."
    )
    instead = (
        "Step on the last batch too, and divide by what was really accumulated:\n\n"
        "```python\nlast = i + 1 == len(loader)\nif (i + 1) % accumulation_steps == 0 or last:\n    ...\n```\n\n"
        "`fallline.Stepper` does both: it divides once, at the step."
    )
    facts = ("remainder-is-underscaled", "leftovers-leak")

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.opaque:
            return
        for optimizer in trace.optimizers:
            if steps_by_framework(trace, optimizer):
                continue
            mine = [w for w in windows(trace) if w.update.optimizer == optimizer]
            rhythm = _rhythm(mine)
            if rhythm is None:
                continue
            yield from self._left_over(trace, optimizer, mine, rhythm)
            yield from self._flushed(trace, mine, rhythm)

    def _left_over(
        self, trace: Trace, optimizer: str | None, mine: list[Window], rhythm: _Rhythm
    ) -> Iterator[Finding]:
        for end in trace.all(Kind.EPOCH_END):
            rest = _rest(trace, optimizer, end, rhythm)
            if rest == 0:
                continue
            fate = _fate(trace, end, rest, mine, rhythm)
            if fate is not None:
                counted: dict[str, Any] = {"left_over": rest, "window": rhythm.size}
                yield self.finding(
                    _decided(rhythm, end),
                    f"Where the number of batches is no multiple of the window, the micro-batches left over at the end {fate}. "
                    "Step on the last batch as well, and divide by the number really accumulated.",
                    **(counted if trace.live else {}),
                )

    def _flushed(self, trace: Trace, mine: list[Window], rhythm: _Rhythm) -> Iterator[Finding]:
        for window in mine:
            count = sum(1 for b in window.alive if same_loss(b) == rhythm.loss)
            if not 0 < count < rhythm.size or not _ends_the_data(trace, window):
                continue
            divisors = {b.fact("divisor") for b in window.alive if same_loss(b) == rhythm.loss}
            rescaled = bool(window.update.after(window.alive[-1], Kind.GRAD_WRITE))
            if divisors == {rhythm.divisor} and rhythm.divisor == rhythm.size and not rescaled:
                yield self.finding(
                    rhythm.boundary,
                    "The micro-batches left over at the end of the data are stepped, but divided by the full window: they count less "
                    "than they should. Divide by the number really accumulated.",
                    severity=Severity.INFO,
                )

    wrong = (
        SETUP.replace("24", "20")
        + """
accumulation_steps = 2
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:  # FL107
            optimizer.step()
            optimizer.zero_grad()
""",
        SETUP.replace("24", "20")
        + """

def train_one_epoch(model, loader, optimizer, every):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / every
        loss.backward()
        if i % every == every - 1:  # FL107
            optimizer.step()
            optimizer.zero_grad()


for epoch in range(3):
    train_one_epoch(model, loader, optimizer, 2)
""",
    )
    right = (
        # the last, smaller window is stepped and divided by its own size
        SETUP.replace("24", "20")
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            for parameter in model.parameters():
                parameter.grad /= i % accumulation_steps + 1
            optimizer.step()
            optimizer.zero_grad()
""",
        # the counter runs on: a window may cross epochs, and is always full
        SETUP.replace("24", "20")
        + """
accumulation_steps = 2
seen = 0
for epoch in range(4):
    for x, y in loader:
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        seen += 1
        if seen % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        # an endless stream has no end
        SETUP
        + """

def forever(loader):
    while True:
        yield from loader


accumulation_steps = 2
batches = forever(loader)
for update in range(6):
    optimizer.zero_grad()
    for micro in range(accumulation_steps):
        x, y = next(batches)
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
    optimizer.step()
""",
        # every batch is split, so that each window is complete
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.chunk(2), y.chunk(2)):
            loss = loss_fn(model(small_x), small_y) / 2
            loss.backward()
        optimizer.step()
""",
    )


@dataclass(frozen=True, slots=True)
class _Rhythm:
    """The first full window of an optimizer: how many micro-batches of which loss, divided by what, decided where."""

    size: int
    loss: object
    boundary: Location
    step: Event
    divisor: float | None


def _rhythm(mine: list[Window]) -> _Rhythm | None:
    usual = next((w for w in mine if w.micro and w.update.step.fact("boundary") is not None), None)
    if usual is None:
        return None
    if any(b.fact("normalised") for b in usual.micro):
        return None
    return _Rhythm(
        len(usual.micro),
        same_loss(usual.micro[0]),
        usual.update.step.fact("boundary"),
        usual.update.step,
        usual.micro[0].fact("divisor"),
    )


def _decided(rhythm: _Rhythm, end: Event) -> Location:
    """The test that decides to step; where a helper makes it, the helper's call in the loop: its author knows the data's end."""
    call = seen_from(rhythm.step, end)
    here = (rhythm.boundary.path, rhythm.boundary.function) == (call.path, call.function)
    return rhythm.boundary if here else call


def _rest(trace: Trace, optimizer: str | None, end: Event, rhythm: _Rhythm) -> int:
    """How many micro-batches of this pass over the data no step has used when it ends."""
    rest = 0
    fed = False
    for event in earlier(trace, end):
        if event.kind is Kind.EPOCH and event.loader == end.loader:
            break
        if event.kind is Kind.STEP and event.optimizer == optimizer:
            break
        if event.kind is Kind.BATCH and event.loader == end.loader:
            if event.fact("endless") or event.fact("exact"):
                return 0
            fed = True
        elif event.kind is Kind.BACKWARD and same_loss(event) == rhythm.loss:
            rest += 1
        elif clears(trace, event, optimizer) and rest == 0:
            return 0  # cleared right at the end of the loop: nothing is left, and what was wiped is FL105
    return rest if fed else 0


def _fate(trace: Trace, end: Event, rest: int, mine: list[Window], rhythm: _Rhythm) -> str | None:
    """What becomes of what is left over when this pass ends; None where nothing is wrong or nothing is known."""
    optimizer = mine[0].update.optimizer
    for event in later(trace, end):
        if event.kind is Kind.STEP and event.optimizer == optimizer:
            return None  # stepped after the loop
        if clears(trace, event, optimizer):
            return "are dropped"
        if event.kind is Kind.BACKWARD and same_loss(event) == rhythm.loss:
            index = bisect_right(mine, event.order, key=lambda w: w.update.step.order)
            # A counter that runs on across epochs makes a full window here, not a longer one.
            longer = 0 < index < len(mine) and (
                len(mine[index].micro) == len(mine[index - 1].micro) + rest
            )
            return "leak into the first update of the next epoch" if longer else None
    passes = [e for e in trace.all(Kind.EPOCH_END) if e.loader == end.loader]
    return "are dropped" if trace.complete and len(passes) == 1 else None


def _ends_the_data(trace: Trace, window: Window) -> bool:
    """The step of this window comes at or after the last batch of a pass."""
    for event in earlier(trace, window.update.step):
        if event.kind is Kind.EPOCH_END:
            return True
        if event.kind is Kind.BATCH:
            return bool(event.fact("last"))
    return False
