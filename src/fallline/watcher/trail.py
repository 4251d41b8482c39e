"""What `fallline diff` needs of a run: where it comes from, which data it read, and its parameters now and then.

All of it is looked at in the first updates and then ever more seldom, at the same updates in every run. In between, an update costs
one call.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from array import array
from collections.abc import Callable
from math import inf
from time import thread_time
from typing import Any

import torch
from torch import Tensor

from fallline.runs.prints import PARAMETERS, RATES, Print
from fallline.runs.store import Store
from fallline.taps.arguments import PARSED, Parsed
from fallline.taps.optimizers import PARAMETERS_ADDED, STEP, ParametersAdded, StepCall
from fallline.taps.tap import Subscription
from fallline.watcher.data_trail import DataTrail
from fallline.watcher.fuse import Fuse
from fallline.watcher.later import send
from fallline.watcher.numbers import describe_parameters
from fallline.watcher.objects import Objects
from fallline.watcher.prints import parameter_print
from fallline.watcher.progress import Progress
from fallline.watcher.provenance.code import code_of
from fallline.watcher.provenance.environment import surroundings, switches
from fallline.watcher.provenance.options import arguments, configuration_files, flattened
from fallline.watcher.recording import Recording

__all__ = ["Trail"]

FIRST = 64  # updates whose data is looked at one by one
_CHEAP = 1e-3  # seconds
_MOST_OPTIMIZERS = 8
_MOST_LOOKS = 4 * FIRST  # of all optimizers together, while each is in its first updates
_MOST_MODULES = 5_000


def _next_due(seen: int, cheap: bool) -> int:
    """The next update whose parameters are looked at: 1, 2, 3, 4, 6, 8, 12, 16, 24, ...; where it is cheap, at first so many between two
    powers of two as there are numbers, or eight."""
    finely = cheap and seen < FIRST
    apart = 1 << max(seen.bit_length() - (4 if finely else 2), 0)
    return (seen // apart + 1) * apart


class _Seen:
    """An optimizer, and how far it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0  # its steps so far
        self.asked = -1  # those it had made when we were asked for the next look
        self.wake = 0  # the next one to look at
        self.due = 0  # the next one whose parameters are looked at
        self.seconds = inf  # of the fastest look at them: any other may have been interrupted


class Trail:
    """Of one process."""

    def __init__(self, objects: Objects, progress: Progress, recording: Recording, fuse: Fuse) -> None:  # fmt: skip
        self._objects = objects
        self._progress = progress
        self._recording = recording
        self._fuse = fuse
        self._seen: dict[int, _Seen] = {}  # by id of the optimizer
        self._layouts: dict[str, int] = {}  # by optimizer: how often its parameters were described
        self._leader: _Seen | None = None  # the first optimizer
        self._parsed: list[Namespace] = []
        self._waiting: list[Callable[[Store], None]] = []  # until there is a recorder
        self._looks = 0
        self._off = False
        self._data = DataTrail(progress, self._print, self._describe)

    def subscribe(self, taps: Subscription) -> None:
        taps.before(STEP, self._step)
        taps.before(PARAMETERS_ADDED, self._guarded(self._added))
        taps.after(PARSED, self._guarded(self._arguments))
        self._data.subscribe(taps, self._guarded)

    def awaits(self) -> int | None:
        """In how many steps the next one comes that has to be seen here. An optimizer that has not stepped since is not waited for."""
        if self._off:
            return None
        counts = self._progress.counts
        left: list[int] = []
        for seen in self._seen.values():
            made = counts.get(seen.name, 0)
            if made > seen.asked:
                left.append(self._progress.steps_until(seen.name, seen.wake - made))
            seen.asked = made
        return min(left, default=None)

    def start(self) -> None:
        """Listen to the data from the first batch on."""
        if self._recording.options.budget:
            self._data.listen()
        else:
            self._off = True  # nothing may be measured

    def stop(self) -> None:
        """Listen no more."""
        self._data.rest()

    def finish(self) -> None:
        """Write what is left."""
        self.stop()
        self._flush()

    def _guarded(self, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        """A comparison that cannot be made later is not a reason to stop watching now."""

        def safely(call: Any) -> None:
            if not self._off and not self._fuse.off:
                try:
                    handler(call)
                except Exception as error:
                    self._give_up(error)

        return safely

    def _give_up(self, error: Exception) -> None:
        self._off = True
        self._data.rest()
        self._describe("not recorded", f"{type(error).__name__}: {error}")

    # -- steps ---------------------------------------------------------------------------------------------------

    def _step(self, call: StepCall) -> None:
        seen = self._seen.get(id(call.optimizer))
        if seen is not None:
            # not those that were seen here: some are made while the watcher rests
            seen.count = self._progress.counts.get(seen.name, 0)
            if seen.count < seen.wake:
                return
        if not self._off and not self._fuse.off:
            try:
                self._look(call.optimizer, seen)
            except Exception as error:
                self._give_up(error)

    def _look(self, optimizer: torch.optim.Optimizer, seen: _Seen | None) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return
        if seen is None:
            seen = self._meet(optimizer)
            if seen is None:
                return
        self._flush()
        if seen.count >= seen.due:
            started = thread_time()
            self._parameters(optimizer, seen.name)
            seen.seconds = min(seen.seconds, thread_time() - started)
            cheap = not seen.count or seen.seconds < _CHEAP  # the first one makes vectors
            seen.due = _next_due(seen.count, cheap)
        self._looks += 1
        if self._looks > _MOST_LOOKS and seen.count < FIRST:
            self._data.rest()  # one optimizer after the other, as a search over settings makes them
        elif seen is self._leader:
            self._data.stepped()
            if seen.count < FIRST or seen.count == seen.due - 1:
                self._data.listen()
            else:
                self._data.rest()
        seen.wake = seen.count + 1 if seen.count < FIRST else max(seen.count + 1, seen.due - 1)

    def _meet(self, optimizer: torch.optim.Optimizer) -> _Seen | None:
        if len(self._seen) >= _MOST_OPTIMIZERS:
            return None
        name = self._objects.optimizer(optimizer)
        seen = self._seen[id(optimizer)] = _Seen(name)
        seen.count = seen.due = self._progress.counts.get(name, 0)
        if self._leader is None:
            self._leader = seen
            self._origin()
        number = self._layouts[name] = self._layouts.get(name, -1) + 1
        self._describe(f"layout:{name}:{number}", self._layout(optimizer))
        self._describe(f"groups:{name}", [_plain(group) for group in optimizer.param_groups])
        return seen

    def _added(self, call: ParametersAdded) -> None:
        """An optimizer was made, perhaps where another one was before, or got more parameters."""
        gone = self._seen.pop(id(call.optimizer), None)
        if gone is not None and gone is self._leader:
            self._leader = None

    def _layout(self, optimizer: torch.optim.Optimizer) -> list[list[Any]]:
        known: dict[int, Any] = {}
        for _, model in self._objects.models():
            known = describe_parameters(model) | known
        found = []
        for number, parameter in enumerate(_parameters_of(optimizer)):
            info = known.get(id(parameter))
            name = info.name if info is not None else f"parameter {number}"
            found.append([name, list(parameter.shape), str(parameter.dtype)[6:]])
        return found

    def _parameters(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        update = self._progress.counts.get(name, 0)
        made = parameter_print(_parameters_of(optimizer))
        self._print(Print(PARAMETERS, name, update, self._layouts[name]), made)
        rates = [_number(group.get("lr")) for group in optimizer.param_groups]
        self._print(Print(RATES, name, update, values=array("d", rates)), None)

    # -- once ----------------------------------------------------------------------------------------------------

    def _arguments(self, call: Parsed) -> None:
        self._parsed.append(call.values)

    def _origin(self) -> None:
        """Where the run comes from. Torch is asked here, files are read by the background thread."""
        meta = self._recording.options.meta
        seen = switches()
        parsed: dict[str, Any] = {}
        for values in [*self._parsed, *_in_main()]:
            parsed |= flattened(values)
        self._parsed.clear()
        words = [str(word) for word in meta.get("argv") or sys.argv[1:]]
        given = arguments(words) | parsed
        self._describe("model", self._model())

        def write(store: Store) -> None:
            store.meta("environment", surroundings() | seen)
            store.meta("options", {"values": given, "files": configuration_files(words)})
            store.meta("code", code_of(meta.get("script")))

        self._waiting.append(write)

    def _model(self) -> dict[str, dict[str, Any]]:
        """Each module's type and its plain attributes, such as a dropout's probability."""
        found: dict[str, dict[str, Any]] = {}
        for _, model in self._objects.models():
            for path, module in list(model.named_modules())[:_MOST_MODULES]:
                about: dict[str, Any] = {"type": type(module).__name__}
                for name, value in vars(module).items():
                    if name[0] != "_" and name != "training":
                        if value is None or isinstance(value, bool | int | float | str):
                            about[name] = value if not isinstance(value, str) else value[:100]
                found.setdefault(path, about)
        return found

    # -- to the recorder -----------------------------------------------------------------------------------------

    def _describe(self, key: str, value: Any) -> None:
        self._waiting.append(lambda store: store.meta(key, value))

    def _print(self, found: Print, made: Tensor | None) -> None:
        sent = None if made is None else send(made.flatten())

        def write(store: Store) -> None:
            if sent is not None:
                found.values = array("d", sent.values())
            store.print(found)

        self._waiting.append(write)

    def _flush(self) -> None:
        recorder = self._recording.recorder
        if recorder is not None:
            waiting, self._waiting = self._waiting, []
            for job in waiting:
                recorder.later(job)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in every if p.device.type != "meta"]


def _number(value: Any) -> float:
    """NaN: a tensor on a device, which would have to be waited for."""
    return float(value) if isinstance(value, int | float) else float("nan")


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group; its learning rate is recorded over time."""
    found: dict[str, Any] = {"parameters": len(group["params"])}
    for name, value in group.items():
        if name in ("params", "lr", "initial_lr"):
            continue
        if value is None or isinstance(value, bool | int | float | str):
            found[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
            found[name] = list(value)
    return found


def _in_main() -> list[Namespace]:
    """Arguments that were parsed before torch was imported."""
    names = getattr(sys.modules.get("__main__"), "__dict__", {})
    return [value for value in list(names.values()) if isinstance(value, Namespace)]
