"""One run of the script in one way, in a process that was forked for it."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from fallline.instruments.aside import OFFLINE, Aside
from fallline.instruments.equal.double import in_double
from fallline.instruments.equal.draws import SampleDraws
from fallline.instruments.equal.evaluated import EvaluationRecorder
from fallline.instruments.equal.feed import feed_all, keep_inputs
from fallline.instruments.equal.loaders import vary_loaders
from fallline.instruments.equal.record import Recorder
from fallline.instruments.equal.spill import spilling
from fallline.instruments.equal.steady import steady
from fallline.instruments.equal.switches import turn
from fallline.instruments.equal.targets import watch_labels
from fallline.instruments.equal.way import Way
from fallline.instruments.equal.zero import watch_zero
from fallline.instruments.same.sources import pin, pin_kernels
from fallline.instruments.script import Script, run_until
from fallline.taps.patches import Patches

__all__ = ["forked", "run_way"]

_MOST_UPDATES = 3  # before an evaluation is given up
_OTHERS = 8  # steps of one optimizer before another makes its first


def run_way(way: Way, target: Script | Callable[[], object], out: str) -> int:
    """Run it up to its first update, and leave the record in `out`; its exit status."""
    os.environ.update(OFFLINE)
    met: set[str] = set()
    patches = Patches(rebind=True)
    draws = SampleDraws(patches, reverse=way.reverse)
    if way.one_sample:
        recorder: Recorder = EvaluationRecorder(met, way.loader)
    else:
        recorder = Recorder(
            met,
            at_backward=way.at_once > 1,
            draws=draws,
            update=way.update,
            optimizer=way.optimizer,
        )
    written = tempfile.mkdtemp(prefix="tmp-fallline-aside-")
    for source in ("python", "numpy", "entropy"):
        pin(source, patches)
    pin_kernels("torch")
    turn(way, patches, met)
    watch_zero(patches, way, recorder.gather)
    vary_loaders(way, patches)
    if isinstance(recorder, EvaluationRecorder):
        recorder.watch_frameworks(patches)
    if not way.dropout:
        steady(patches, met)
    watch_labels(patches, lambda: recorder.tokens, met, mend=way.labels)
    if way.feed:
        feed_all(patches, torch.load(way.feed, weights_only=True), lambda: not recorder.to_pass)
    given = None
    if way.keep:
        backwards = lambda: -1 if recorder.to_pass else len(recorder.record.backwards)  # noqa: E731
        given = keep_inputs(patches, backwards)
    if way.double:
        in_double(patches)
    patches.reach_names()
    Aside(written, patches)
    try:
        if way.offload:
            torch.autograd.graph.save_on_cpu().__enter__()  # for as long as this process lives
        elif way.budget:
            spilling(way.budget, written).__enter__()
        ran = run_until(target, recorder, updates=_MOST_UPDATES if way.one_sample else _most(way))
    finally:
        recorder.stop()
        patches.remove()
        _remove(written)
    record = recorder.record
    record.met = sorted(met)
    record.host_peak, record.device_peak = _peaks()
    record.status = 130 if ran.interrupted else ran.status
    record.error = "" if ran.error is None else f"{type(ran.error).__name__}: {ran.error}"
    torch.save(asdict(record), out)
    if given is not None:
        torch.save(given, way.keep)
    return record.status


def _peaks() -> tuple[int, int]:
    """The most bytes that this process has held: in the host's memory, and on its device."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    unit = 1 if sys.platform == "darwin" else 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return held, torch.cuda.max_memory_allocated() if used else 0


def _most(way: Way) -> int:
    """Updates after which nothing more is expected: another optimizer may step several times before the one that is looked at."""
    return way.update + 1 if way.optimizer < 0 else _OTHERS * (way.update + 1)


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def forked(run: Callable[[], int], output: Any) -> int:
    """The number of a process that does this and ends; its output goes into a file where one is given."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        if output is not None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        status = run()
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
