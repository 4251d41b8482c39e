"""What the loss scale has done to the gradients that an optimizer would step, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache

from fallline.events import Event, Kind, Trace
from fallline.rules._order import following, preceding

__all__ = [
    "Scale",
    "assumed",
    "feeding",
    "handled",
    "named",
    "on",
    "optimizers",
    "reaches",
    "same_scaler",
    "scales",
    "still_scaled",
]


class Scale(StrEnum):
    CLEAR = "clear"  # no gradients since they were cleared or stepped
    PLAIN = "plain"  # of a loss that was not scaled
    SCALED = "scaled"  # multiplied by the loss scale
    UNSCALED = "unscaled"  # they were scaled, then unscale_ was called
    UNKNOWN = "unknown"


@lru_cache(maxsize=4)  # asked for at every backward of one trace
def optimizers(trace: Trace) -> tuple[str | None, ...]:
    """Every optimizer that something happens to: a run that crashed early has stepped none of them."""
    owned = (e for e in trace.events if e.optimizer is not None or e.kind is Kind.STEP)
    return tuple(dict.fromkeys(e.optimizer for e in owned)) or (None,)


def on(trace: Trace, event: Event) -> bool:
    """The scaler of this event does something: not GradScaler(enabled=False)."""
    scaler = trace.object(event.scaler)
    return scaler is None or scaler.fact("enabled") is not False


def same_scaler(a: Event, b: Event) -> bool:
    return a.scaler is None or b.scaler is None or a.scaler == b.scaler


def scales(trace: Trace) -> Iterator[tuple[Event, dict[str | None, Scale]]]:
    """Each event with the state, just before it, of the gradients of every optimizer; nothing where no loss is scaled."""
    if not any(e.fact("scaled") for e in trace.all(Kind.BACKWARD)):
        return
    state: dict[str | None, Scale] = dict.fromkeys(optimizers(trace), Scale.CLEAR)
    for event in trace.events:
        yield event, state
        for optimizer, scale in state.items():
            if trace.concerns(event, optimizer):
                state[optimizer] = _after(scale, event, on(trace, event))
            elif event.kind is Kind.UNSCALE and _perhaps_same(trace, event.optimizer, optimizer):
                state[optimizer] = Scale.UNKNOWN


def _perhaps_same(trace: Trace, a: str | None, b: str | None) -> bool:
    """Two names that may stand for one optimizer: items of a list that was made out of sight."""
    both = [o for o in (trace.object(a), trace.object(b)) if o is not None and o.fact("assumed")]
    return len(both) == 2 and not any(o.fact("parameters") for o in both)


def _after(scale: Scale, event: Event, on: bool) -> Scale:
    match event.kind:
        case Kind.ZERO_GRAD | Kind.STEP:
            # scaler.step unscales what it steps: what is left over afterwards is no longer scaled
            return Scale.CLEAR
        case Kind.BACKWARD:
            return _after_backward(scale, event.fact("scaled"))
        case Kind.UNSCALE if on and scale is Scale.SCALED:
            return Scale.UNSCALED if event.optimizer is not None else Scale.UNKNOWN
        case Kind.GRAD_WRITE if (
            event.fact("op") not in {"noise", "add"} and scale is not Scale.CLEAR
        ):
            return Scale.UNKNOWN  # perhaps unscaled by hand
        case Kind.OPAQUE if scale is not Scale.CLEAR:
            return Scale.UNKNOWN
    return scale


def _after_backward(scale: Scale, scaled: bool | None) -> Scale:
    if scaled is True and scale in {Scale.CLEAR, Scale.SCALED}:
        return Scale.SCALED
    if scaled is False and scale in {Scale.CLEAR, Scale.PLAIN}:
        return Scale.PLAIN
    return Scale.UNKNOWN


def still_scaled(trace: Trace, event: Event, state: dict[str | None, Scale]) -> list[str | None]:
    """The optimizers whose scaled gradients this event touches; empty where one of them may be unscaled."""
    touched = {o: s for o, s in state.items() if trace.concerns(event, o) and s is not Scale.CLEAR}
    return list(touched) if all(s is Scale.SCALED for s in touched.values()) else []


def reaches(trace: Trace, backward: Event, optimizer: str | None) -> bool:
    """It is known that this backward adds to what this optimizer steps."""
    if not trace.concerns(backward, optimizer):
        return False
    holder = trace.object(optimizer)
    known = holder is not None and holder.fact("parameters") and backward.fact("parameters")
    return bool(known) or len(optimizers(trace)) == 1


def feeding(trace: Trace, backward: Event) -> list[Event]:
    """The forward passes that this backward goes through, as far as their order tells."""
    found: list[Event] = []
    for event in preceding(trace, backward):
        if (
            event.kind is Kind.FORWARD
            and event.fact("grad") is not False
            and event.fact("used") is not False
        ):
            found.append(event)
        elif event.kind is Kind.STEP or (found and event.kind is Kind.BACKWARD):
            break
    return found


def handled(trace: Trace, backward: Event) -> bool:
    """A framework owns the protocol around this backward, or its gradients are changed by hand afterwards."""
    if backward.fact("normalised") is not None:
        return True
    for event in following(trace, backward):
        if event.kind in {Kind.GRAD_WRITE, Kind.OPAQUE}:
            return True
        if event.kind in {Kind.STEP, Kind.BACKWARD}:
            break
    return False


def assumed(trace: Trace, event: Event) -> bool:
    """The scaler is a switch of this trace, or was not seen to be made: it may be none, or not torch's."""
    scaler = trace.object(event.scaler)
    made_elsewhere = scaler is not None and scaler.fact("assumed") is True
    return made_elsewhere or any("scaler" in setting for setting in trace.settings)


def named(trace: Trace, optimizer: str | None) -> str:
    """The class of an optimizer, '' where it is not known."""
    holder = trace.object(optimizer)
    return str(holder.fact("type") or "") if holder is not None else ""
