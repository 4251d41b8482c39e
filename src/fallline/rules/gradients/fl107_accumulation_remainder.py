"""FL107: the micro-batches left over at the end of the data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fallline.events import (
    Backward,
    Batch,
    Epoch,
    EpochEnd,
    GradWrite,
    Step,
    Trace,
    Window,
    clears,
    windows,
)
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

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
        "Step on the last batch too, and divide by the number that was really accumulated:\n\n"
        "```python\nlast = i + 1 == len(loader)\nif (i + 1) % accumulation_steps == 0 or last:\n    ...\n```\n\n"
        "`fallline.Stepper` does both: it divides once, at the step."
    )
    facts = ("remainder-is-underscaled", "leftovers-leak")

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("step", "clear"):
            return
        for optimizer in trace.optimizers:
            if optimizer in trace.by_framework:
                continue
            mine = [w for w in windows(trace) if w.optimizer == optimizer]
            rhythm = _rhythm(mine)
            if rhythm is None:
                continue
            yield from self._left_over(trace, optimizer, mine, rhythm)
            yield from self._flushed(trace, mine, rhythm)
            if trace.live:
                yield from self._cleared(mine, rhythm)

    def _left_over(
        self, trace: Trace, optimizer: str | None, mine: list[Window], rhythm: _Rhythm
    ) -> Iterator[Finding]:
        left = {
            end: rest
            for end in trace.of(EpochEnd)
            if (rest := _rest(trace, optimizer, end, rhythm))
        }
        if any(_stepped_after(trace, end, optimizer) for end in left):
            return  # what is left over in one pass is stepped: the loop knows about it
        if rhythm.step.other_way:
            return  # `or step + 1 == self.len_epoch`: the author thought of the end
        for end, rest in left.items():
            fate = _fate(trace, end, rest, mine, rhythm)
            if fate is not None:
                counted: dict[str, Any] = {"left_over": rest, "window": rhythm.size}
                yield self.finding(
                    _decided(rhythm, end),
                    f"When the number of batches is not a multiple of the window, the micro-batches left over at the end of the {fate}. "
                    "Step on the last batch as well, and divide by the number that was really accumulated.",
                    # once in a run, where it makes a single pass over the data
                    severity=Severity.INFO if fate == _AT_THE_END and not trace.live else None,
                    **(counted if trace.live else {}),
                )

    def _cleared(self, mine: list[Window], rhythm: _Rhythm) -> Iterator[Finding]:
        """Where no loader shows the end of the data: less than a window is cleared, and a full one follows."""
        full = [w for w in mine if len(w.alive) == rhythm.size]
        if all(w.wiped for w in full):
            return
        for window in full:
            lost = [b for wipe in window.wiped for b in wipe.lost if b.loss == rhythm.loss]
            if 0 < len(lost) < rhythm.size:
                yield self.finding(
                    rhythm.boundary,
                    f"When the number of batches is not a multiple of the window, the micro-batches left over at the end of the epoch are dropped: "
                    f"{len(lost)} here, where a window has {rhythm.size}. Step on the last batch as well, and divide by the number that was really "
                    "accumulated.",
                    left_over=len(lost),
                    window=rhythm.size,
                )

    def _flushed(self, trace: Trace, mine: list[Window], rhythm: _Rhythm) -> Iterator[Finding]:
        for window in mine:
            same = [b for b in window.alive if b.loss == rhythm.loss]
            if not 0 < len(same) < rhythm.size or not _ends_the_data(trace, window):
                continue
            rescaled = bool(window.update.after(window.alive[-1]).of(GradWrite))
            by_the_window = {b.divisor for b in same} == {rhythm.divisor} == {rhythm.size}
            if by_the_window and not rescaled:
                yield self.finding(
                    rhythm.boundary,
                    "The micro-batches left over at the end of the data are stepped, but still divided by the full window, so they count less "
                    "than they should. Divide by the number that was really accumulated.",
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


_AT_THE_END = "run are dropped"


@dataclass(frozen=True, slots=True)
class _Rhythm:
    """The first full window of an optimizer: how many micro-batches of which loss, divided by what, decided where."""

    size: int
    loss: object
    boundary: Location
    step: Step
    divisor: float | None


def _rhythm(mine: list[Window]) -> _Rhythm | None:
    for window in mine:
        first, step = next(iter(window.micro), None), window.step
        if first is not None and step.boundary is not None:
            if any(b.normalised for b in window.micro):
                return None
            return _Rhythm(len(window.micro), first.loss, step.boundary, step, first.divisor)
    return None


def _decided(rhythm: _Rhythm, end: EpochEnd) -> Location:
    """The test that decides to step; where a helper makes it, the helper's call in the loop: its author knows the data's end."""
    call = rhythm.step.seen_from(end)
    here = (rhythm.boundary.path, rhythm.boundary.function) == (call.path, call.function)
    return rhythm.boundary if here else call


def _rest(trace: Trace, optimizer: str | None, end: EpochEnd, rhythm: _Rhythm) -> int:
    """How many micro-batches of this pass over the data no step has used when it ends."""
    rest = 0
    fed = False
    others = False  # another optimizer stepped in this pass
    for event in trace.before(end):
        match event:
            case Epoch(loader=loader) if loader == end.loader:
                if others:
                    return 0  # and this one never: it belongs to another run of the same loop
                break
            case Step(optimizer=stepped) if stepped == optimizer:
                break
            case Step():
                others = True
            case Batch(loader=loader) if loader == end.loader:
                if event.endless or event.exact:
                    return 0
                fed = True
            case Backward() if event.loss == rhythm.loss:
                rest += 1
            case _ if rest == 0 and clears(trace, event, optimizer):
                return 0  # cleared right at the end of the loop: nothing is left, and what was wiped is FL105
    return rest if fed else 0


def _stepped_after(trace: Trace, end: EpochEnd, optimizer: str | None) -> bool:
    """After this pass over the data, before the next backward."""
    step = trace.after(end).until(Backward).of(Step).where(lambda e: e.optimizer == optimizer)
    return bool(step)


def _fate(
    trace: Trace, end: EpochEnd, rest: int, mine: list[Window], rhythm: _Rhythm
) -> str | None:
    """What becomes of what is left over when this pass ends; None where nothing is wrong or nothing is known."""
    optimizer = mine[0].optimizer
    for event in trace.after(end):
        match event:
            case Step(optimizer=stepped) if stepped == optimizer:
                return None  # stepped after the loop
            case Backward() if event.loss == rhythm.loss:
                index = bisect_right(mine, event.order, key=lambda w: w.step.order)
                # A counter that runs on across epochs makes a full window here, not a longer one.
                longer = 0 < index < len(mine) and (
                    len(mine[index].micro) == len(mine[index - 1].micro) + rest
                    or _seen(mine[index], rhythm) == rhythm.size + rest
                )
                return "epoch leak into the first update of the next epoch" if longer else None
            case _ if clears(trace, event, optimizer):
                return "epoch are dropped"
    # a loop that makes a new loader for each of its files passes over the data several times as well
    passes = [e for e in trace.of(EpochEnd) if e.loader == end.loader or e.at == end.at]
    return _AT_THE_END if trace.complete and len(passes) == 1 else None


def _seen(window: Window, rhythm: _Rhythm) -> int:
    """How many micro-batches of this loss the step of a window sees."""
    return sum(1 for b in window.alive if b.loss == rhythm.loss)


def _ends_the_data(trace: Trace, window: Window) -> bool:
    """The step of this window comes at or after the last batch of a pass."""
    match trace.before(window.step).of(EpochEnd, Batch).first:
        case EpochEnd():
            return True
        case Batch(last=last):
            return bool(last)
    return False
