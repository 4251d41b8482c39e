"""One watched process: parts that listen to the taps, each with what it needs, put together here.

The training thread only ever does what these parts do: note an event, read a clock, look whether numbers are finite. Judging
and writing happen in background threads. Nothing in here may raise into the program that trains.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fallline.finding import Finding
from fallline.taps.optimizers import StepCall
from fallline.taps.patches import Patches
from fallline.taps.tap import Subscription
from fallline.watcher.backwards import Backwards
from fallline.watcher.budget import AIMED_AT
from fallline.watcher.by_hand import ByHand
from fallline.watcher.checkpoint_draws import CheckpointDraws
from fallline.watcher.clips import Clips, tap_engine
from fallline.watcher.collectives import Collectives
from fallline.watcher.decay import Decay
from fallline.watcher.duty import Duty
from fallline.watcher.emit import Emitter
from fallline.watcher.engines import Engines
from fallline.watcher.fixed_tables import FixedTables
from fallline.watcher.forks import Forks
from fallline.watcher.forwards import Forwards
from fallline.watcher.fuse import Fuse
from fallline.watcher.guard import Guard
from fallline.watcher.hand_updates import HandUpdates
from fallline.watcher.hardware import Hardware
from fallline.watcher.heartbeat import Heartbeat
from fallline.watcher.judge import Judge, Verdict
from fallline.watcher.kept import KeptGraphs
from fallline.watcher.known import Known
from fallline.watcher.lessons import Lessons
from fallline.watcher.loaders import Loaders
from fallline.watcher.loading import Loading
from fallline.watcher.log import EventLog
from fallline.watcher.loss_graph import LossGraph
from fallline.watcher.loss_inputs import LossInputs
from fallline.watcher.measures import Measures
from fallline.watcher.memory import LiveGraphs
from fallline.watcher.modes import Modes
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed
from fallline.watcher.origin import Origin
from fallline.watcher.own_targets import OwnTargets
from fallline.watcher.owners import Owners
from fallline.watcher.pace import Pace
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.ration import Ration
from fallline.watcher.reach import Reach
from fallline.watcher.recorder import Recorder
from fallline.watcher.recording import Options, Recording
from fallline.watcher.rest import Rest
from fallline.watcher.routine import Routine
from fallline.watcher.running_statistics import RunningStatistics
from fallline.watcher.scalers import Scalers
from fallline.watcher.schedulers import Schedulers
from fallline.watcher.shard_factors import ShardFactors
from fallline.watcher.shared_modules import SharedModules
from fallline.watcher.spikes import Spikes
from fallline.watcher.steps import Steps
from fallline.watcher.trail import Trail
from fallline.watcher.updates import Updates
from fallline.watcher.waits import Waits
from fallline.watcher.window import Window
from fallline.watcher.workers import Workers
from fallline.watcher.wrappers import Wrappers

__all__ = ["Options", "Session"]


class Session:
    """Watches this process. `start` begins to listen, `finish` ends it and judges what was seen."""

    def __init__(self, options: Options, verdict: Verdict) -> None:
        """`verdict`: the rules over events."""
        self.options = options
        self.objects = Objects()
        self.recording = Recording(options)
        self.trains: Callable[[], None] | None = None  # called in a forked child that trains
        self._verdict = verdict
        self._forks = Forks()
        self._engine = Patches()
        self._compose()

    def _compose(self, *, rebind: bool = False) -> None:
        """The parts, from those that know nothing to those that know most."""
        objects, recording, options = self.objects, self.recording, self.options
        self.taps = taps = Subscription(rebind=rebind)
        self.fuse = fuse = Fuse()
        self.log = log = EventLog()
        self.progress = progress = Progress()
        draft, window, wrappers, graphs = Draft(), Window(), Wrappers(), LiveGraphs()
        self.routine = routine = Routine(log, window)
        emitter = Emitter(log, routine, window, objects)
        self.observed = observed = Observed(recording)
        self.origin = origin = Origin(objects, progress, observed)
        self.judge = Judge(self._verdict, log, objects, recording)
        scalers = Scalers(emitter, routine, objects, draft)
        ration = Ration(options.budget, recording)
        self.guard = guard = Guard(
            options.guard, options.guard_limit, ration, objects, draft, scalers, origin
        )
        measures = Measures(objects, scalers, recording)
        kept = KeptGraphs(emitter, progress)
        self.owners = owners = Owners(emitter, objects, progress, observed)
        by_hand = ByHand(emitter, objects, taps)
        self.hand_updates = hand_updates = HandUpdates(recording.open, progress, draft, fuse.safely)
        self.collectives = collectives = Collectives(recording.open, fuse)
        recording.heartbeat = Heartbeat(
            progress, collectives, observed, lambda: self.judge.findings, recording.took
        )
        reach = Reach(emitter, objects, window, owners, LossGraph(objects, progress, observed))
        spikes = Spikes(objects, origin, progress, draft, recording)
        recording.spikes = spikes.row
        steps = Steps(emitter, routine, objects, scalers)
        workers = Workers(recording, observed)
        loaders = Loaders(emitter, routine, objects, draft, kept, recording, workers)
        decay = Decay(objects, observed)
        statistics = RunningStatistics(progress, observed)
        shared, tables = SharedModules(objects, observed), FixedTables(objects, observed)
        self.early_looks = early_looks = (
            OwnTargets(objects, progress, observed),
            LossInputs(progress, observed),
        )
        forwards = Forwards(
            emitter, routine, objects, window, wrappers, progress, draft, origin, graphs, kept, statistics, fuse
        )  # fmt: skip
        self.backwards = Backwards(
            emitter, routine, objects, window, wrappers, draft, scalers, reach, origin, spikes, graphs, kept, fuse
        )  # fmt: skip

        self.lessons = Lessons(observed, recording)
        self.trail = Trail(objects, progress, recording, fuse)
        hardware = Hardware(options.check_hardware, origin, progress, recording)

        def awaits() -> int | None:
            """In how many steps one comes that somebody has to see."""
            awaited = (self.trail.awaits(), hardware.awaits(), measures.awaits(progress))
            return min((n for n in awaited if n is not None), default=None)

        known: dict[int, Known] = {}
        self.duty = duty = Duty(
            known, emitter, draft, window, guard,
            Pace(AIMED_AT * options.budget, progress, lambda: recording.beside),
            Rest(known, log, progress, scalers, guard, recording, fuse), awaits,
        )  # fmt: skip
        waits = Waits(emitter, progress, taps)

        def stepped() -> None:
            if progress.steps == 1:
                hand_updates.stop()  # an optimizer steps, perhaps one that was made before us
            by_hand.stepped(progress.steps)
            waits.stepped(progress.steps)
            owners.stepped()
            decay.stepped(progress.steps)
            shared.stepped(progress.steps)
            tables.stepped(progress.steps)
            for look in early_looks:
                look.stepped(progress.steps)
            kept.stepped()
            self.judge.stepped(progress.steps)

        self.updates = Updates(
            steps, routine, log, progress, draft, scalers, measures, guard, origin, spikes, graphs, recording, fuse, known, duty, stepped
        )  # fmt: skip
        forwards.subscribe(taps)
        self.backwards.subscribe(taps)
        Engines(draft, guard, origin).subscribe(
            taps, fuse
        )  # what it adds to an update comes before its end
        self.updates.subscribe(taps)
        Clips(emitter, routine, objects, draft, wrappers, guard, fuse).subscribe(taps)
        by_hand.subscribe(fuse)
        hardware.subscribe(taps, fuse)
        self.trail.subscribe(taps)
        for part in (
            steps,
            scalers,
            loaders,
            owners,
            Schedulers(emitter, routine, objects, loaders, recording),
            Loading(observed),
            Modes(emitter, routine, objects, progress, log),
            CheckpointDraws(progress, observed),
            shared,
            tables,
            waits,
            collectives,
            ShardFactors(objects, progress, draft, by_hand, recording),
        ):
            part.subscribe(taps, fuse)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *, rebind: bool = False) -> None:
        """Listen from here on. `rebind`: also to functions that a module has already imported by name."""
        self.taps.rebind = rebind
        self.hand_updates.start(rebind)
        self.taps.start()
        self.trail.start()
        self.lessons.start(rebind=rebind)
        for look in self.early_looks:
            look.start(self.fuse, rebind=rebind)
        self._engine = Patches(rebind=rebind)
        tap_engine(self._engine)
        self._engine.reach_names()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """In a forked child."""
        self.duty.stop()
        if self.fuse.off:
            return
        self._forks.sleep(self._wake)
        self.taps.stop()
        self.trail.stop()
        self.lessons.stop()
        for look in self.early_looks:
            look.stop()
        self.hand_updates.stop()

    def _wake(self, call: StepCall) -> None:
        """A forked child steps an optimizer."""
        self.recording = Recording(self.options)
        self._compose(rebind=self.taps.rebind)
        self.taps.start()
        self.trail.start()
        self.lessons.start(rebind=self.taps.rebind)
        for look in self.early_looks:
            look.start(self.fuse, rebind=self.taps.rebind)
        self._forks.claim()
        if self.trains is not None:
            self.fuse.safely(self.trains)
        self.updates.begins(call)

    def finish(self, status: str = "finished") -> None:
        """Stop listening, judge what was seen, write it down."""
        if os.getpid() != self.pid:
            return
        safely = self.fuse.safely
        self.fuse.off = True
        self.duty.stop()
        self.taps.stop()
        self.collectives.stop()
        for look in self.early_looks:
            look.stop()
        self._engine.remove()
        safely(self.hand_updates.finish)
        safely(self.owners.look)
        safely(self.guard.settle)
        safely(self.lessons.finish)
        safely(self.judge.finish, status in ("finished", "exit 0"))
        safely(self.trail.finish)
        if self.recorder is not None:
            guard = {
                "mode": self.options.guard,
                "skipped": self.guard.skipped,
                "aside": self.guard.aside,
            }
            self.recorder.describe("guard", guard)
            self.recorder.describe("updates", self.progress.counts)
            self.recorder.close(status)

    def crashed(self, error: BaseException) -> None:
        """The program raised, and its frames are still there: perhaps it saw a NaN itself."""
        trace = error.__traceback__
        if not self.fuse.off:
            self.fuse.safely(self.lessons.failed, error)
            self.fuse.safely(self.recording.heartbeat.crashed, trace)
            self.fuse.safely(self.hand_updates.settle)
            self.fuse.safely(self.origin.crashed, trace)

    def weigh_next(self) -> None:
        """The loss whose backward comes next is weighed by exact accumulation, not divided by the user."""
        self.backwards.weighed = True

    # -- what others ask ---------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process that is watched."""
        return self._forks.pid

    @property
    def findings(self) -> list[Finding]:
        """What the rules over events have found so far."""
        return self.judge.findings

    @property
    def failed(self) -> str | None:
        """The traceback of our own failure, if there was one."""
        return self.fuse.failed

    @property
    def recorder(self) -> Recorder | None:
        return self.recording.recorder

    @property
    def rank(self) -> int:
        return self.recording.rank

    @property
    def live(self) -> Any:
        return self.recording.live

    @live.setter
    def live(self, live: Any) -> None:
        self.recording.live = live

    @property
    def loggers(self) -> Any:
        return self.recording.loggers

    @loggers.setter
    def loggers(self, loggers: Any) -> None:
        self.recording.loggers = loggers
