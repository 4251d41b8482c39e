"""`fallline.check_function`: a custom autograd Function, asked everything that training will ask of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fallline.engine import rng
from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.function.cases import CASES, Check
from fallline.instruments.function.report import Case, FunctionReport
from fallline.instruments.function.watched import floats, has_setup_context

__all__ = ["check_function", "guessed_inputs"]

_SHAPES = ((4, 3), (4, 4), (5,), (2, 3, 4, 4))


def check_function(
    function: type[torch.autograd.Function], *inputs: Any, skip: Iterable[str] = ()
) -> FunctionReport:
    """Run gradcheck, gradgradcheck, and the shape, dtype, device, stride, AMP, in-place and ctx cases over a Function.

    `inputs` are as `Function.apply` takes them; the inputs themselves are not changed. Without any, some are guessed from
    the signature of forward. `skip` names cases to leave out, such as "gradcheck" for a straight-through estimator.
    """
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        raise UsageError(
            f"check_function needs a subclass of torch.autograd.Function, not a {type(function).__name__}"
        )
    unknown = sorted(set(skip) - set(CASES))
    if unknown:
        raise UsageError(f"there is no case {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    given = list(inputs) or guessed_inputs(function)
    if not floats(given):
        raise UsageError(
            "none of the inputs is a floating-point tensor: there is no gradient to check"
        )
    report = FunctionReport(function.__name__, ", ".join(map(_shown, given)))
    kept = rng.capture()
    with Progress(function.__name__, total=len(CASES)) as progress:
        try:
            _ask(report, Check(function, given), set(skip), progress)
        except KeyboardInterrupt:
            report.partial = True
        finally:
            rng.restore(kept)
    return report


def _ask(report: FunctionReport, check: Check, skip: set[str], progress: Progress) -> None:
    for number, (name, case) in enumerate(CASES.items()):
        progress.advance(number, name)
        if name in skip:
            report.cases.append(Case(name, None, "left out"))
            continue
        report.cases += case(check)
        if name == "forward and backward" and report.failures:
            return  # nothing else can be asked


def guessed_inputs(function: type[torch.autograd.Function]) -> list[Any]:
    """Random tensors for the inputs of forward that have no default, in the first shape that it accepts."""
    parameters = list(inspect.signature(function.forward).parameters.values())
    if not has_setup_context(function):
        parameters = parameters[1:]  # ctx
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    source = torch.Generator().manual_seed(0)
    error: Exception | None = None
    for shape in _SHAPES:
        for tensors in range(len(needed), 0, -1):
            guess: list[Any] = [
                torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(tensors)
            ]
            guess += [2 for _ in needed[tensors:]]
            try:
                function.apply(*guess)  # type: ignore[no-untyped-call]
            except Exception as problem:  # whatever a user's code raises on inputs that do not fit
                error = problem
            else:
                return guess
    raise UsageError(
        f"no inputs could be guessed for {function.__name__} ({error}): give them, check_function({function.__name__}, x, ...)"
    )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return "x".join(map(str, value.shape)) or "scalar"
    return repr(value)[:20]


def shaped(shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Random tensors of these shapes, without drawing from the user's randomness."""
    source = torch.Generator().manual_seed(0)
    return [torch.randn(tuple(s), generator=source, dtype=torch.float64) for s in shapes]
