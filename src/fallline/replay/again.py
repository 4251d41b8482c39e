"""Runs a failing micro-batch once more, exactly as it was: same inputs, randomness, modes and autocast, nothing left changed.

What is kept for that during training is small: references to what the models were called with, and the state of the random
generators before the first call. Three ways, best first: the user's own statements from the model call to the backward;
the user's function that a framework called (`training_step`); the model calls alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.replay.capture import Capture, Gone, take
from fallline.replay.kept import nothing_changed
from fallline.replay.modules import unwrap, wrapper_of
from fallline.replay.named import NamedTensors
from fallline.replay.once import streams_kept
from fallline.replay.randomness import restore, state_now
from fallline.replay.region import Spot, region
from fallline.replay.tensors import tensors_in
from fallline.taps.frames import locate, user_frames
from fallline.taps.tap import Reached, replaying

__all__ = ["Replay"]


def spot_of(code: CodeType, instruction: int) -> Spot:
    at = locate(code, instruction, code.co_firstlineno)
    if at.end_column is None:  # PYTHONNODEBUGRANGES: the first statement of that line
        text = linecache.getline(code.co_filename, at.line)
        return at.line, len(text) - len(text.lstrip()) + 1
    return at.line, at.column


@dataclass
class Replay:
    """How a micro-batch can be run again. `run()` returns its loss (or last output), `missing` says why not."""

    run: Callable[[], Any] | None
    way: str = ""
    missing: str = ""
    names: NamedTensors = field(default_factory=NamedTensors)


def prepare(capture: Capture) -> Replay:
    """The best way to run this micro-batch again from where we stand now."""
    if not capture.calls:
        return Replay(None, missing="no model was called: there is nothing to run again")
    if capture.sharded:
        return Replay(
            None, missing="the model is sharded over ranks: one rank cannot run it again alone"
        )
    here = _common_frame(capture)
    why = ""
    if here is not None:
        frame, first, last = here
        names = dict(frame.f_locals)
        spots, outside = _spots(capture, frame), frame.f_globals
        found = region(frame.f_code.co_filename, first, last, spots, names, outside=outside)
        if found.code is not None:
            scope = {**frame.f_globals, **{k: _copied(v) for k, v in names.items()}}
            return Replay(lambda: _execute(found, scope), "statements", names=NamedTensors(names))
        why = found.missing
    if capture.function is not None:
        code, args = capture.function
        method = getattr(args[0], code.co_name, None) if args else None
        if callable(method):
            return Replay(
                lambda: _loss_of(method(*args[1:])),
                "function",
                names=NamedTensors({"batch": args[1:]}),
            )
    return Replay(
        lambda: _call_models(capture),
        "modules",
        missing=why or "the code that computes the loss has returned",
    )


def prepare_crashed(capture: Capture, frames: list[tuple[FrameType, int]]) -> Replay:
    """After an exception between model call and backward, such as the script's own check for NaN: its frames are all there is."""
    first = (
        {(key, code): spot_of(code, i) for key, code, i in capture.calls[0].chain}
        if capture.calls
        else {}
    )
    for frame, instruction in reversed(frames):
        begin = first.get((id(frame), frame.f_code))
        if begin is None:
            continue
        last = spot_of(frame.f_code, instruction)
        names = dict(frame.f_locals)
        wanted = next((n for n, v in names.items() if _bad_loss(v)), None)
        if wanted is None or capture.sharded:
            break
        spots = _spots(capture, frame)
        found = region(frame.f_code.co_filename, begin, last, spots, names, wanted, frame.f_globals)
        if found.code is None:
            return Replay(None, missing=found.missing)
        scope = {**frame.f_globals, **{k: _copied(v) for k, v in names.items()}}
        return Replay(
            functools.partial(_execute, found, scope, wanted),
            "statements",
            names=NamedTensors(names),
        )
    return Replay(None, missing="no loss that is not finite is in sight")


def _bad_loss(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.grad_fn is not None
        and value.numel() == 1
        and value.is_floating_point()
        and not bool(torch.isfinite(value))
    )


def _spots(capture: Capture, frame: FrameType) -> set[Spot]:
    """Where in this frame the models were called."""
    return {
        spot_of(code, instruction)
        for c in capture.calls
        for key, code, instruction in c.chain
        if key == id(frame) and code is frame.f_code
    }


def _common_frame(capture: Capture) -> tuple[FrameType, Spot, Spot] | None:
    """The innermost frame of the user's code that called both the model and, now, the backward."""
    calls = {key: (code, spot_of(code, i)) for key, code, i in capture.calls[0].chain}
    ends = {key: (code, spot_of(code, i)) for key, code, i in capture.end_chain}
    for frame in user_frames():
        known, end = calls.get(id(frame)), ends.get(id(frame))
        if known is None or end is None:
            continue
        if known[0] is frame.f_code and end[0] is frame.f_code:
            first, last = known[1], end[1]
            same_call = first[0] == last[0] and not (
                capture.direct and capture.calls[0].chain[0][0] == id(frame)
            )
            return None if same_call else (frame, first, max(first, last))
    return None


def _execute(found: Any, scope: dict[str, Any], wanted: str = "") -> Any:
    kept = []
    for owner, attribute in found.targets:
        with contextlib.suppress(Exception):
            thing = eval(owner, scope)
            kept.append((thing, attribute, getattr(thing, attribute)))
    try:
        exec(found.code, scope)
        if wanted:
            return scope[wanted]
    except Reached as reached:
        return reached.loss
    finally:
        for thing, attribute, value in kept:
            with contextlib.suppress(Exception):
                setattr(thing, attribute, value)
    raise Gone


def _loss_of(result: Any) -> Any:
    return result.get("loss") if isinstance(result, dict) else result


def _call_models(capture: Capture) -> Any:
    output = None
    for call in capture.calls:
        module = call.module()
        if module is None:
            raise Gone
        context = (
            torch.autocast(call.autocast[0], call.autocast[1])
            if call.autocast
            else contextlib.nullcontext()
        )
        with context:
            output = module(*take(call.args), **take(call.kwargs))
    return output


def _copied(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict, set) else value


def arguments(capture: Capture) -> NamedTensors:
    """The arguments of the models' forward passes, for tensors that the user gave no name."""
    found = NamedTensors()
    for call in capture.calls:
        module = call.module()
        with contextlib.suppress(Gone, TypeError, ValueError):
            model = unwrap(module) if module is not None else None
            bound = inspect.signature(model.forward).bind_partial(  # type: ignore[union-attr]
                *take(call.args), **take(call.kwargs)
            )
            found |= NamedTensors(bound.arguments).called(f"{{}} of {type(model).__name__}.forward")
    return found


@contextlib.contextmanager
def as_it_was(
    capture: Capture, same: Callable[[Tensor, Tensor], None] | None = None
) -> Iterator[None]:
    """Randomness, buffers and output set aside; taps silent; models called with what they were called with.

    `same` is called with each tensor that was computed for a model call, and of the one that it really had.
    """
    random_now = state_now()
    buffers = [
        (m, name, b)
        for root in capture.models
        for m in root.modules()
        for name, b in m._buffers.items()
        if b is not None
    ]
    stance: Any = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        stance = torch.compiler.set_stance("force_eager")
    call = nn.Module.__call__
    try:
        if capture.random is not None:
            restore(capture.random)
        for module, name, buffer in buffers:
            # swapped, not changed: a graph that waits for its backward may have saved the original
            module._buffers[name] = buffer.clone()
        nn.Module.__call__ = _replayed_call(call, capture, same)  # type: ignore[method-assign]
        quiet = io.StringIO()
        with (
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            replaying(),
            stance,
            nothing_changed(capture.models),
            streams_kept(),
            torch.enable_grad(),
        ):
            yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        restore(random_now)


def _replayed_call(original: Any, capture: Capture, same: Any) -> Any:
    """Models get the inputs they really had; a DDP model runs without its wrapper, which would talk to other ranks."""
    waiting = list(capture.calls)
    depth = [0]

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if depth[0] or not waiting:
            return original(self, *args, **kwargs)
        call = waiting[0]
        if call.module() is self:
            waiting.pop(0)
            with contextlib.suppress(Gone):
                had = take(call.args), take(call.kwargs)
                for pair in zip(tensors_in((args, kwargs)), tensors_in(had), strict=False):
                    if same is not None:
                        same(*pair)
                args, kwargs = had
            if wrapper_of(self) == "ddp":
                self = unwrap(self)
            depth[0] += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                depth[0] -= 1
        return original(self, *args, **kwargs)

    return __call__
