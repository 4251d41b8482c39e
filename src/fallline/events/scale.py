"""What the loss scale has done to the gradients that an optimizer would step, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache

from fallline.events.kinds import (
    Backward,
    Event,
    Forward,
    GradWrite,
    Opaque,
    Step,
    Unscale,
    ZeroGrad,
)
from fallline.events.trace import Trace

__all__ = [
    "Scale",
    "forwards_of",
    "reaches",
    "same_scaler",
    "scaler_assumed",
    "scaler_on",
    "scales",
    "still_scaled",
    "touched_optimizers",
]


class Scale(StrEnum):
    CLEAR = "clear"  # no gradients since they were cleared or stepped
    PLAIN = "plain"  # of a loss that was not scaled
    SCALED = "scaled"  # multiplied by the loss scale
    UNSCALED = "unscaled"  # they were scaled, then unscale_ was called
    UNKNOWN = "unknown"


@lru_cache(maxsize=4)  # asked for at every backward of one trace
def touched_optimizers(trace: Trace) -> tuple[str | None, ...]:
    """Every optimizer that something happens to: a run that crashed early has stepped none of them."""
    owned = (e for e in trace.events if e.optimizer is not None or isinstance(e, Step))
    return tuple(dict.fromkeys(e.optimizer for e in owned)) or (None,)


def scaler_on(trace: Trace, event: Event) -> bool:
    """The scaler of this event does something: not GradScaler(enabled=False)."""
    scaler = trace.scaler(event.scaler)
    return scaler is None or scaler.enabled is not False


def same_scaler(a: Event, b: Event) -> bool:
    return a.scaler is None or b.scaler is None or a.scaler == b.scaler


def scaler_assumed(trace: Trace, event: Event) -> bool:
    """The scaler is a switch of this trace, or was not seen to be made: it may be none, or not torch's."""
    scaler = trace.scaler(event.scaler)
    made_elsewhere = scaler is not None and scaler.assumed
    return made_elsewhere or any("scaler" in setting for setting in trace.settings)


def scales(trace: Trace) -> Iterator[tuple[Event, dict[str | None, Scale]]]:
    """Each event with the state, just before it, of the gradients of every optimizer; nothing where no loss is scaled."""
    if not any(e.scaled for e in trace.of(Backward)):
        return
    state: dict[str | None, Scale] = dict.fromkeys(touched_optimizers(trace), Scale.CLEAR)
    for event in trace.events:
        yield event, state
        for optimizer, scale in state.items():
            if trace.concerns(event, optimizer):
                state[optimizer] = _after(scale, event, scaler_on(trace, event))
            elif isinstance(event, Unscale) and _perhaps_same(trace, event.optimizer, optimizer):
                state[optimizer] = Scale.UNKNOWN


def _perhaps_same(trace: Trace, a: str | None, b: str | None) -> bool:
    """Two names that may stand for one optimizer: items of a list that was made out of sight."""
    both = [o for o in (trace.optimizer(a), trace.optimizer(b)) if o is not None and o.assumed]
    return len(both) == 2 and not any(o.parameters for o in both)


def _after(scale: Scale, event: Event, on: bool) -> Scale:
    match event:
        case ZeroGrad() | Step():
            # scaler.step unscales what it steps: what is left over afterwards is no longer scaled
            return Scale.CLEAR
        case Backward():
            return _after_backward(scale, event.scaled)
        case Unscale() if on and scale is Scale.SCALED:
            return Scale.UNSCALED if event.optimizer is not None else Scale.UNKNOWN
        case GradWrite() if event.rescales and scale is not Scale.CLEAR:
            return Scale.UNKNOWN  # perhaps unscaled by hand
        case Opaque() if scale is not Scale.CLEAR:
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


def reaches(trace: Trace, backward: Backward, optimizer: str | None) -> bool:
    """It is known that this backward adds to what this optimizer steps."""
    if not trace.concerns(backward, optimizer):
        return False
    known = trace.held_by(optimizer) and backward.parameters
    return bool(known) or len(touched_optimizers(trace)) == 1


def forwards_of(trace: Trace, backward: Backward) -> list[Forward]:
    """The forward passes that this backward goes through, as far as their order shows."""
    found: list[Forward] = []
    for event in trace.before(backward):
        match event:
            case Forward() if event.may_train:
                found.append(event)
            case Step():
                break
            case Backward() if found:
                break
    return found
