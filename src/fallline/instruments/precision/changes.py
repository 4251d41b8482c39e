"""The smallest change that makes a format work: tried where the first operation fails, and kept only if a run with it is right."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fallline.instruments.precision.formats import Call, Change, Format, Site
from fallline.instruments.precision.record import Operation
from fallline.instruments.precision.run import Outcome, Probe

__all__ = ["Repair", "repair"]

ROUNDS = 4  # a cast often moves the trouble to the next line; that many lines are followed
_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Repair:
    """What to change for one format, and what a run with the change gave."""

    format: str
    kind: str  # "cast" | "float32" | "log space" | "subtract the maximum" | "scale the loss" | "autocast" | "none"
    says: str
    verified: bool
    places: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome | None = None

    def to_json(self) -> dict[str, Any]:
        after = self.outcome
        gradients = after.gradients if after else None
        return {
            "format": self.format,
            "kind": self.kind,
            "change": self.says,
            "places": self.places,
            "verified": self.verified,
            "loss_relative_error": after.loss_error if after else None,
            "gradients_relative_error": gradients.error if gradients else None,
            "gradient_underflow": gradients.underflow if gradients else None,
        }


def repair(probe: Probe, failed: Outcome, others: dict[str, Outcome]) -> Repair | None:
    """The smallest change for a format that does not work as it is; None when it works."""
    name = failed.format.name
    if failed.works_unscaled:
        return None
    if failed.works and failed.scaled is not None and failed.plain is not None:
        says = (
            f"scale the loss: torch.amp.GradScaler({probe.device!r}) (or fallline.Stepper(precision='fp16')); at a scale of "
            f"{failed.scaled.scale:g} {failed.scaled.underflow:.1%} of the gradients underflow instead of {failed.plain.underflow:.1%}"
        )
        return Repair(name, "scale the loss", says, True, outcome=failed)
    if failed.raised is not None:
        return _instead(failed, others)
    return _search(probe, failed) or _instead(failed, others)


def _instead(failed: Outcome, others: dict[str, Outcome]) -> Repair:
    """No change on one line helps: another format that was measured to work."""
    name = failed.format.name
    half = "fp16" if failed.format.half is torch.float16 else "bf16"
    if failed.format.pure and others.get(f"{half} autocast") is not None:
        if others[f"{half} autocast"].works:
            says = f"keep parameters float32 and use autocast: measured here, {half} autocast works"
            return Repair(name, "autocast", says, True, outcome=others[f"{half} autocast"])
    for other in ("bf16 autocast", "fp16 autocast", "fp32"):
        if other != name and other in others and others[other].works:
            return Repair(name, other, f"use {other}: it works here", True, outcome=others[other])
    return Repair(name, "none", "no change that was tried helps", False)


def _search(probe: Probe, failed: Outcome) -> Repair | None:
    """Follow the first failure from line to line, with the smallest change that gets further."""
    changes: dict[Site, Change] = {}
    kinds: list[str] = []
    blamed: list[Operation] = []
    here = failed
    for _ in range(ROUNDS):
        first = here.first_failure
        if first is None or first.call is None or first.call.site in changes:
            break
        best: tuple[Outcome, dict[Site, Change], str] | None = None
        for kind, extra in _candidates(first, failed.format, probe.device):
            tried = changes | extra
            outcome = probe.measure(failed.format, tried)
            if outcome.works:
                return _repaired(failed, outcome, [*kinds, kind], [*blamed, first])
            if best is None and outcome.raised is None and _later(outcome, first):
                best = (outcome, tried, kind)
        if best is None:
            break
        here, changes, kind = best
        kinds.append(kind)
        blamed.append(first)
    return None


def _later(outcome: Outcome, first: Operation) -> bool:
    """The trouble now begins somewhere else."""
    now = outcome.first_failure
    assert first.call is not None
    return now is not None and now.call is not None and now.call.site != first.call.site


def _candidates(
    first: Operation, format: Format, device: str
) -> list[tuple[str, dict[Site, Change]]]:
    assert first.call is not None
    site = first.call.site
    logs: Site = ("", "", 0, "log")
    stable = [("log space", {logs: Change("log space", _log_space)})]
    shift = [("subtract the maximum", {site: Change("subtract the maximum", _shifted)})]
    casts: list[tuple[str, dict[Site, Change]]] = []
    if format.half is not None:
        back = format.tensors if format.pure else None
        casts = [
            ("cast", {site: Change("cast", _cast(back))}),
            ("float32", {site: Change("float32", _float32(device, back))}),
        ]
    if first.op == "exp":
        return [*casts, *shift, *stable]
    return [*casts, *stable]


# -- what a user would write ---------------------------------------------------------------------------------------


def _up(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


def _cast(back: torch.dtype | None) -> Callable[..., Any]:
    """`torch.exp(x.float())`; a model that is half all over needs the result in its type again."""

    def apply(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = func(*tree_map(_up, args), **tree_map(_up, kwargs))
        return tree_map(lambda x: _down(x, back), result) if back is not None else result

    return apply


def _down(value: Any, back: torch.dtype | None) -> Any:
    return value.to(back) if isinstance(value, Tensor) and value.dtype is torch.float32 else value


def _float32(device: str, back: torch.dtype | None) -> Callable[..., Any]:
    def apply(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return _cast(back)(func, args, kwargs)

    return apply


def _shifted(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`torch.exp(x - x.amax(-1, keepdim=True))`: the same for whatever is divided by its sum."""
    x = args[0]
    if not isinstance(x, Tensor) or x.ndim == 0:
        return func(*args, **kwargs)
    return func(x - x.amax(-1, keepdim=True).detach(), *args[1:], **kwargs)


def _log_space(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The logarithm of what is built from exp, softmax or sigmoid, without leaving the logarithms."""
    found = _log_of(args[0])
    return func(*args, **kwargs) if found is None else found


_PASSED = {"getitem", "gather", "diagonal", "diag", "reshape", "view", "squeeze", "unsqueeze", "flatten", "transpose", "index_select"}  # fmt: skip


def _log_of(x: Any) -> Tensor | None:
    made = getattr(x, "_fallline_made", None)
    if made is None:
        return None
    name, args, kwargs = made[0], made[2], made[3]
    functional = torch.nn.functional
    if name == "exp":
        return _up(args[0])  # type: ignore[no-any-return]
    if name == "softmax":
        return functional.log_softmax(_up(args[0]), *args[1:], **_without_internals(kwargs))
    if name == "sigmoid":
        return functional.logsigmoid(_up(args[0]))
    if name == "sum" and (inner := _log_of(args[0])) is not None:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        every = tuple(range(inner.ndim)) if dim is None else dim
        return torch.logsumexp(inner, every, keepdim=keep)
    if name == "div" and (top := _log_of(args[0])) is not None:
        bottom = _log_of(args[1])
        return None if bottom is None else top - bottom
    if name == "add" and isinstance(args[1], float) and 0 < args[1] < 1e-3:
        return _log_of(args[0])  # an epsilon has nothing left to guard
    if name in _PASSED and (inner := _log_of(args[0])) is not None:
        return made[1](inner, *args[1:], **kwargs)  # type: ignore[no-any-return]
    return None


def _without_internals(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in ("dim", "dtype")}


# -- saying it -----------------------------------------------------------------------------------------------------


def _repaired(
    failed: Outcome, outcome: Outcome, kinds: list[str], blamed: list[Operation]
) -> Repair:
    places = []
    for kind, operation in zip(kinds, blamed, strict=True):
        calls = [operation.call]
        if kind == "log space":  # written where the logarithm is taken
            calls = [c for c in outcome.changed if c.function == "log"]
        places += [_place(kind, call, failed.format.pure) for call in calls if call is not None]
    wheres = "; ".join(f"{p['write']} ({_where(p)})" for p in places)
    scale = ""
    if not outcome.works_unscaled and outcome.scaled is not None:
        scale = f"; and scale the loss (GradScaler; {outcome.scaled.scale:g} was used)"
    return Repair(failed.format.name, kinds[-1], wheres + scale, True, places, outcome)


def _place(kind: str, call: Call, pure: bool) -> dict[str, Any]:
    at = call.at
    return {
        "kind": kind,
        "op": call.function,
        "module": call.module,
        "path": at.path if at else None,
        "line": at.line if at else None,
        "source": linecache.getline(at.path, at.line).strip() if at else "",
        "write": _write(kind, call.function, pure),
    }


def _where(place: dict[str, Any]) -> str:
    line = f"{place['path']}:{place['line']}" if place["path"] else "no line of yours"
    return f"{line}, module {place['module']}" if place["module"] else line


def _write(kind: str, function: str, pure: bool) -> str:
    back = ", and cast the result back" if pure else ""
    if kind == "cast":
        return f"call `{function}` with its inputs cast by .float(){back}"
    if kind == "float32":
        return f"run `{function}` in float32: inputs cast by .float(), inside torch.autocast(..., enabled=False){back}"
    if kind == "subtract the maximum":
        return "subtract the maximum first: torch.exp(x - x.amax(-1, keepdim=True)), or use torch.softmax"
    return "stay in logarithms: log_softmax, logsumexp, logsigmoid or cross_entropy instead of the log of an exponential"
