"""Updates that nobody watches: their steps are counted, and the guard still looks at them.

Counting is one short hook in front of each step; it calls for the rest of this only when a look is due or the rest is over. The guard
looks at one small gradient, and now and then at all of them, as often as its part of the budget allows. On an accelerator it looks at
all of them before every step, and where several ranks have to decide alike, before the same ones as while it is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, isfinite
from threading import get_ident
from time import thread_time
from types import CodeType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fallline.runs.update import UpdateRow
from fallline.taps.frames import caller
from fallline.taps.gradients import gradient_of
from fallline.taps.optimizers import hear_end
from fallline.taps.tap import Call, Hook, thread
from fallline.watcher.fuse import Fuse, GuardStop
from fallline.watcher.guard import Guard
from fallline.watcher.known import Known
from fallline.watcher.log import EventLog
from fallline.watcher.pace import MOST_REST
from fallline.watcher.progress import Progress
from fallline.watcher.ration import ALIKE, until_all
from fallline.watcher.recording import Recording
from fallline.watcher.scalers import Scalers

__all__ = ["Rest"]

COUNT_SECONDS = 0.5e-6  # of an update at rest
FEW_SECONDS = 15e-6  # of a look at a few small gradients
# Of the budget of an update: for looks at one gradient, and at all of them.
FOR_ONE, FOR_ALL = 0.2, 0.1
TIMED = (
    16  # one of so many looks at one gradient is timed: two looks at the clock take a quarter of it
)
FEW_ELEMENTS = 64  # are read faster as a list than summed up by torch
OVERDUE = 256  # steps at which a rest ends wherever they are made
_sum, _item = Tensor.sum, Tensor.item


class Rest:
    """`before` each step, from torch's own hook; `after` those that something is to be done behind."""

    def __init__(
        self,
        known: dict[int, Known],
        log: EventLog,
        progress: Progress,
        scalers: Scalers,
        guard: Guard,
        recording: Recording,
        fuse: Fuse,
    ) -> None:
        self._known = known
        self._log = log
        self._progress = progress
        self._scalers = scalers
        self._guard = guard
        self._recording = recording
        self._fuse = fuse
        self.before: Hook = self._stranger
        self._over: Callable[[], None] | None = None
        self._site: tuple[int, CodeType, int] | None = None
        # steps since the rest began; the step after which it ends; the steps at which it looks next
        self._tick = self._end = self._next_one = self._next_all = 0
        self._planned = 0  # the step after which it was to end
        self._granted = 1  # steps that are only counted, and the one behind them
        # by id of the optimizer: a small parameter, and whether it is read as a list
        self._probes: dict[int, tuple[Tensor | None, bool]] = {}
        self._probed = self._looked = 0.0  # seconds that a look at one gradient takes, and at all
        self._one = self._all = 1  # every so many updates
        self._looks = -1
        self._alike = False  # ranks have to decide alike, on a CPU
        self._few: list[Tensor] = []  # then: those whose gradients are looked at before each step

    def begin(
        self, call: Call, optimizer: Optimizer, left: int, budget: float, over: Callable[[], None]
    ) -> None:
        """After this step, for so many updates. `budget`: seconds of an update. `over` is called when the rest is."""
        frame = call.frame
        self._site = (id(optimizer), frame.f_code, frame.f_lasti)
        self._over = over
        self._tick, self._end, self._planned = 0, left, left
        self._ration(optimizer, budget)
        self._progress.at_rest = dict.fromkeys(self._known, 0)
        self.before = self._counter(self._progress.at_rest)

    def _counter(self, made: dict[int, int]) -> Hook:
        """What is left in the way of an update. It has no more in it than it must."""
        due, stranger, few = self._due, self._stranger, self._few
        left = self._granted = 1

        def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal left
            try:
                made[id(optimizer)] += 1
            except KeyError:
                stranger(optimizer, args, kwargs)
                return
            left -= 1
            if left <= 0:
                left = due(optimizer, left)

        def count_and_look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            """As `Guard.spared`, without a call of ours."""
            nonlocal left
            try:
                made[id(optimizer)] += 1
            except KeyError:
                stranger(optimizer, args, kwargs)
                return
            left -= 1
            if left > 0:
                total = 0.0
                for parameter in few:
                    gradient = gradient_of(parameter)
                    if gradient is not None:
                        total += _item(_sum(gradient))
                if total != 0.0 and isfinite(total):
                    return
            left = due(optimizer, left)

        return count_and_look if few else count

    def _ration(self, optimizer: Optimizer, budget: float) -> None:
        """How often the guard looks: on an accelerator always, on several ranks as it does while it is watched."""
        known = self._known[id(optimizer)]
        self._probes = {}
        probe, self._looked = self._probe(optimizer)
        self._one = self._every(self._probed, FOR_ONE * budget)
        self._alike = self._recording.world > 1 and not known.on_device
        # the number of the update says when all are looked at, and each of several optimizers counts its own
        one = self._alike and len(self._known) == 1 and not self._scalers.any
        self._few = self._guard.few(optimizer, known.held) if one else []
        if known.on_device or self._alike:
            self._all = 1
        else:
            share = FOR_ALL if probe is not None else FOR_ONE
            self._all = self._every(self._looked, share * budget)
        self._next_one = self._next_all = 1

    def _every(self, seconds: float, budget: float) -> int:
        """Once in how many steps a look can be paid for; each of several optimizers gets its turn."""
        every = 1 + int(min(seconds / budget, MOST_REST)) if budget else MOST_REST
        while every > 1 and gcd(every, len(self._known)) != 1:
            every += 1
        return every

    @property
    def seconds(self) -> float:
        """Of ours, in an update that is not watched."""
        if self._alike:
            return COUNT_SECONDS + FEW_SECONDS + self._looked / ALIKE
        return COUNT_SECONDS + self._probed / self._one + self._looked / self._all

    @property
    def complete(self) -> bool:
        """It has lasted as long as it was to: nothing has happened meanwhile."""
        return self._tick >= self._planned

    def settle(self) -> None:
        """Count the steps that were made."""
        self._fuse.safely(self._guard.send)
        progress = self._progress
        made, progress.at_rest = progress.at_rest, {}
        for number, steps in made.items():
            known = self._known.get(number)
            if known is not None:
                progress.counts[known.name] = progress.counts.get(known.name, 0) + steps
            progress.steps += steps
            self._log.updates += steps

    # -- before a step -----------------------------------------------------------------------------------------

    def _due(self, optimizer: Optimizer, left: int) -> int:
        """A look is due, or the end. How many steps to count from here on. `left`: steps that were still to be counted, had not a few gradients
        looked bad."""
        self._tick += self._granted - left
        self._granted = 1
        if get_ident() != thread.ident:
            return 1  # another thread steps as well
        tick = self._tick
        if (
            left > 0
            or tick >= self._next_all
            or (tick >= self._next_one and not self._timed(optimizer))
        ):
            self._next_all = tick + self._all
            self._look(optimizer)
        if self._few:
            self._next_one = self._next_all = tick + until_all(self._index(optimizer) + 1) + 1
        if tick >= self._next_one:
            self._next_one = tick + self._one
        if tick >= self._end:
            hear_end(optimizer)
        self._granted = max(1, min(self._next_one, self._next_all, self._end) - tick)
        return self._granted

    def _stranger(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer that never stepped while we watched: from here on we do."""
        if get_ident() == thread.ident:
            self._progress.steps += 1
            self._log.updates += 1
            self._end = self._tick
            hear_end(optimizer)

    def _timed(self, optimizer: Optimizer) -> bool:
        """Whether one small gradient is finite; now and then also how long it takes to find out."""
        self._looks += 1
        if self._looks % TIMED:
            return self._fine(optimizer)
        started = thread_time()
        fine = self._fine(optimizer)
        took = thread_time() - started
        self._probed = min(took, 2 * self._probed) if self._probed else took
        return fine

    def _fine(self, optimizer: Optimizer) -> bool:
        if id(optimizer) not in self._probes:
            self._probe(optimizer)
        probe, lists = self._probes[id(optimizer)]
        gradient = gradient_of(probe) if probe is not None else None
        if gradient is None:
            return True
        return isfinite(sum(gradient.tolist()) if lists else gradient.sum().item())

    def _probe(self, optimizer: Optimizer) -> tuple[Tensor | None, float]:
        """A parameter whose gradient is looked at, and what a look at all takes."""
        probe, seconds = self._guard.probe(optimizer, self._known[id(optimizer)].held)
        lists = probe is not None and probe.dim() == 1 and probe.numel() <= FEW_ELEMENTS
        self._probes[id(optimizer)] = (probe, lists)
        return probe, seconds

    def _look(self, optimizer: Optimizer) -> None:
        known = self._known.get(id(optimizer))
        if known is None or self._scalers.any or self._fuse.off:
            return
        made = self._progress.at_rest
        try:
            index = self._index(optimizer)
            if self._alike and self._guard.spared(optimizer, index, known.held):
                return
            skipped = self._guard.skipped
            self._guard.look(optimizer, index, known.held)
            if self._guard.skipped > skipped:  # those that follow are watched
                self._end = self._tick
            if self._guard.holds:
                hear_end(optimizer)
        except GuardStop:
            made[id(optimizer)] -= 1  # which is not made
            raise
        except Exception as error:
            self._fuse.fail(error)

    def _index(self, optimizer: Optimizer) -> int:
        """The number of its update that comes now."""
        progress = self._progress
        made = progress.at_rest[id(optimizer)]
        return progress.counts.get(self._known[id(optimizer)].name, 0) + made - 1

    # -- after it ----------------------------------------------------------------------------------------------

    def after(self, optimizer: Optimizer) -> None:
        """A step was made."""
        if self._guard.holds:
            self._let_go(optimizer)
        stranger = id(optimizer) not in self._known
        if self._tick >= self._end and (stranger or self._at_site(optimizer)):
            assert self._over is not None
            self._over()

    def _let_go(self, optimizer: Optimizer) -> None:
        """All gradients were looked at."""
        guard = self._guard
        flag, known = guard.flag, self._known[id(optimizer)]
        made = self._progress.at_rest.get(id(optimizer), 1)
        index = self._progress.counts.get(known.name, 0) + made - 1
        held_back = guard.release(optimizer)
        if flag is not None:
            guard.flagged(index, known.held, flag)
        if held_back:
            self._recording.open().update(UpdateRow(index, known.name, skipped=True))
            self._end = self._tick

    def _at_site(self, optimizer: Optimizer) -> bool:
        frame = caller()
        here: Any = (id(optimizer), frame.f_code, frame.f_lasti)
        return here == self._site or self._tick > self._end + OVERDUE
