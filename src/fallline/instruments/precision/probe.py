"""`fallline.precision_probe`: a loss, a module or a training step in every format, and what to make of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.micro_batch import device_of
from fallline.instruments.precision.changes import repair
from fallline.instruments.precision.device import (
    device_name,
    matmuls,
    native,
    speed,
    time_padding,
)
from fallline.instruments.precision.formats import FORMATS, NARROW_REFERENCE, REFERENCE
from fallline.instruments.precision.report import PrecisionReport
from fallline.instruments.precision.run import Outcome, Probe
from fallline.instruments.precision.verdict import decide
from fallline.instruments.untouched import World

__all__ = ["precision_probe", "probe_run"]


def precision_probe(
    fn: Callable[..., Any], *inputs: Any, timing: bool = True, **named: Any
) -> PrecisionReport:
    """Run `fn(*inputs, **named)` in fp32, fp16 and bf16 and say which of them trains the same thing, and why not.

    `fn` is a module, a function that returns a loss, or one training step that calls `backward`. It is run several times,
    forward and backward, on copies: the model, its gradients, optimizers and the randomness stay as they are. `timing=False`
    leaves the speed out.
    """
    if not callable(fn):
        raise UsageError(
            f"precision_probe needs a function or module to run, not {type(fn).__name__}: precision_probe(loss_fn, inputs)"
        )
    given = [t for t in tree_leaves((inputs, named)) if isinstance(t, Tensor)]
    near = given or _reached_by(fn)
    return probe_run(lambda: fn(*inputs, **named), near, timing=timing)


def probe_run(
    run: Callable[[], Any], near: Any = (), *, timing: bool = True, device: str | None = None
) -> PrecisionReport:
    """The same over a function without arguments; `near` holds tensors that show which device it is about."""
    world = World()
    device = device or _device(world, near)
    report = PrecisionReport(device, device_name(device), native(device))
    probe = Probe(run, world, device)
    with Progress("precision", total=len(FORMATS) + 3) as progress:
        try:
            _measure(report, probe, progress, timing)
        except KeyboardInterrupt:
            report.partial = True
    return report


def _measure(report: PrecisionReport, probe: Probe, progress: Progress, timing: bool) -> None:
    progress.advance(0, "fp64")
    exact = probe.measure(REFERENCE)
    if exact.raised is not None and "out of memory" in exact.raised:
        report.reference = NARROW_REFERENCE.name
        report.notes.append(
            "float64 does not fit into memory: float32 is what the others are held against"
        )
        exact = probe.measure(NARROW_REFERENCE)
    if exact.raised is not None:
        raise UsageError(
            f"the code cannot be run once more in {report.reference}{' at ' + exact.raised_at if exact.raised_at else ''}: {exact.raised}"
        )
    if exact.loss is None:
        raise UsageError(
            "the code returned no floating-point tensor: return the loss (or the outputs of the model)"
        )
    report.loss_given = probe.said_loss
    report.small_gradients = probe.small_gradients() if probe.exact_gradients else {}
    for number, format in enumerate(FORMATS, 1):
        progress.advance(number, format.name)
        report.outcomes[format.name] = probe.measure(format)
    progress.advance(len(FORMATS) + 1, "the smallest change")
    for name, outcome in report.outcomes.items():
        found = repair(probe, outcome, report.outcomes)
        if found is not None:
            report.repairs[name] = found
    _shapes(report)
    if timing:
        progress.advance(len(FORMATS) + 2, "speed")
        formats = [f for f in FORMATS if not f.pure and report.outcomes[f.name].raised is None]
        report.seconds = speed(probe.run, probe.world, probe.device, formats)
    report.verdict = decide(
        report.outcomes, report.repairs, report.seconds, report.native, report.device
    )


def _shapes(report: PrecisionReport) -> None:
    measured: list[Outcome] = [report.outcomes[n] for n in ("fp16 autocast", "bf16 autocast")]
    best = max(measured, key=lambda o: len(o.operations))
    report.matmuls = matmuls(best.operations)
    if report.device == "cuda" and best.format.half is not None:
        time_padding(report.matmuls, best.format.half)


def _reached_by(fn: Any) -> list[Tensor]:
    """Tensors that a function without inputs names: it may use one model of many in the process, on another device than most."""
    if isinstance(fn, functools.partial):
        return _reached_by(fn.func) + _tensors_of((fn.args, fn.keywords))
    code = getattr(fn, "__code__", None)
    named = getattr(fn, "__globals__", {})
    values = [named[name] for name in (code.co_names if code is not None else ()) if name in named]
    for cell in getattr(fn, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a name without a value yet
            values.append(cell.cell_contents)
    return _tensors_of((fn, getattr(fn, "__self__", None), values))


def _tensors_of(things: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for thing in tree_leaves(things):
        if isinstance(thing, nn.Module):
            found += thing.parameters()
        elif isinstance(thing, Tensor):
            found.append(thing)
    return found


def _device(world: World, near: Any) -> str:
    given = [t for t in tree_leaves(near) if isinstance(t, Tensor)]
    held = [p for m in world.modules for p in m.__dict__.get("_parameters", {}).values()]
    parameters = [p for p in held if p is not None]
    found = device_of(given) if given else device_of(parameters)
    return found if torch.amp.is_autocast_available(found) else "cpu"
