"""One micro-batch as a state machine: outside → forward → done → outside. Anything else is an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import TracebackType

import torch
from torch import Tensor

from fallline.engine.backward import backward
from fallline.engine.ownership import Ownership
from fallline.engine.position import Position
from fallline.engine.precision import Precision
from fallline.engine.replicas import Replicas
from fallline.engine.rewind import Rewind
from fallline.engine.window import Window
from fallline.errors import EngineError

__all__ = ["MicroBatch"]


class _State(Enum):
    OUTSIDE = "outside"
    FORWARD = "forward"  # in the context, before backward: under autocast, and no_sync unless this is the last one
    DONE = "done"  # in the context, after backward


_OUTSIDE, _FORWARD, _DONE = (
    _State  # a global is found quicker than a member, and this is done a thousand times a second
)


class MicroBatch:
    """What `stepper.micro_batch()` gives. There is one for a Stepper, used again and again."""

    def __init__(
        self,
        window: Window,
        precision: Precision,
        replicas: Replicas,
        position: Position,
        ownership: Ownership,
        update: Callable[[], None],
        rewind: Rewind | None,
    ) -> None:
        self._window = window
        self._precision = precision
        self._replicas = replicas
        self._position = position
        self._ownership = ownership
        self._update = update
        self._rewind = rewind
        self._state = _OUTSIDE
        self._closes = False
        self.last = False  # what `micro_batch(last=...)` was given
        self.updated = False  # the last micro-batch made an update
        self.broken = False  # a backward failed half-way: the window holds part of a gradient

    def check_outside(self, what: str) -> None:
        if self._state is not _OUTSIDE:
            raise EngineError(
                f"{what} was called inside a micro_batch: leave the `with stepper.micro_batch()` block first"
            )

    def __enter__(self) -> MicroBatch:
        # Written out where it happens for every micro-batch: a call is dearer than what it would do
        if self._state is not _OUTSIDE:
            self.check_outside("a second micro_batch()")
        ownership, window = self._ownership, self._window
        ownership.check_ours()
        if self.broken:
            raise EngineError(
                "this window's gradients are incomplete (a backward failed half-way, or something changed them): "
                "call stepper.discard() to drop the window, or stop"
            )
        turn = self._position.turn
        if turn is not None and turn.used:
            raise EngineError(
                "a second micro_batch() for one batch of over(): over() gives one batch for one micro-batch"
            )
        ownership.take()
        if window.count == 0:
            # At the beginning, not after the step: what other losses left behind in the meantime goes too.
            ownership.begin()
            window.size = window.accumulate
            window.began_at = self._position.samples
        else:
            self._check_unchanged()
        self._closes = self._is_last()
        self.updated = False
        self._replicas.enter(synchronise=self._closes)
        if self._precision.autocast is not None:
            self._precision.autocast.__enter__()  # type: ignore[no-untyped-call]
        self._state = _FORWARD
        return self

    def _is_last(self) -> bool:
        """Whether this micro-batch closes its window. On several ranks `over` knows, for all of them together."""
        turn, window = self._position.turn, self._window
        if self.last or (turn is not None and turn.last):
            return True
        if turn is not None and self._replicas.size > 1:
            return False
        return window.count + 1 >= window.size

    def _check_unchanged(self) -> None:
        try:
            self._ownership.check_unchanged()
        except EngineError:
            self.broken = True
            raise

    def backward(
        self, loss: Tensor, weight: float | Tensor | None = None, *, retain_graph: bool = False
    ) -> None:
        """Backward of this micro-batch. `loss` is its mean; or, with `weight`, its sum over that many things (tokens, samples).

        A micro-batch without any (all of it masked) has weight 0 and changes nothing.
        """
        if self._state is not _FORWARD:
            self._refuse("backward")
        if loss.numel() != 1:
            raise EngineError(
                f"the loss has {loss.numel()} elements: give backward one number, a mean, or a sum and its weight"
            )
        if not loss.requires_grad:
            raise EngineError(
                "the loss does not depend on any parameter: was it computed under no_grad, or detached?"
            )
        turn = self._position.turn
        # This rank has no data left: it takes part in the synchronisation, with nothing
        if turn is not None and turn.idle:
            loss = loss * 0.0
        checked = self._weigh(weight, loss.device)
        if self._rewind is not None:
            self._rewind.see(loss, checked, weight is not None)
        self._leave_autocast()  # backward runs in the dtypes that the forward pass chose
        if self._closes:
            self._window.start_total()
        self._state = _DONE
        self.broken = True
        backward(self._precision.scaled(loss), retain_graph)
        self.broken = False
        self._ownership.note(stays_open=not self._closes)

    def gradients_ready(self, weight: float | Tensor | None = None) -> None:
        """In place of `backward`, where something else computed the gradients: a pipeline schedule, or code with a backward of its own.

        They are already in `.grad`, computed inside this block. What is true of `backward` is true here: they are those of a mean, or
        of a sum over `weight` things. With float16, give that code `micro.scaled(loss)`.
        """
        if self._state is not _FORWARD:
            self._refuse("gradients_ready")
        turn = self._position.turn
        if turn is not None and turn.idle:
            raise EngineError(
                "this rank has no data left while others have, and gradients_ready() cannot take part without any: "
                "give all ranks the same number of batches"
            )
        self._weigh(weight, self._window._device)
        self._leave_autocast()
        if self._closes:
            self._window.start_total()
        self._state = _DONE
        self._ownership.note(stays_open=not self._closes)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as this precision needs it for backward: multiplied with the loss scale of float16, else itself."""
        return self._precision.scaled(loss)

    def _refuse(self, what: str) -> None:
        if self._state is _DONE:
            raise EngineError(
                f"a second {what} in one micro_batch: add the losses and call backward once"
            )
        raise EngineError(
            f"{what} was called outside of a micro_batch: call it inside `with stepper.micro_batch() as micro:`, together with the forward pass"
        )

    def _weigh(self, weight: float | Tensor | None, device: torch.device) -> float | Tensor:
        window, precision, turn = self._window, self._precision, self._position.turn
        checked = window.check(weight)
        idle = turn is not None and turn.idle
        if turn is not None:
            window.known_total = turn.total
        if idle:
            checked = 0.0
        if weight is not None and precision.scaler is not None and not precision.has_reference:
            # Waits for the device, until the first micro-batch that has any weight.
            replicas = self._replicas
            largest = float(checked)
            precision.set_reference(
                replicas.largest(largest, device) if replicas.size > 1 else largest
            )
        window.add(checked, weight is not None, idle)
        return checked

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state, self._state = self._state, _OUTSIDE
        if state is _FORWARD:
            self._leave_autocast()
        self._replicas.leave()
        if kind is not None:
            return
        if state is _FORWARD:
            raise EngineError(
                "micro_batch ended without backward: call micro.backward(loss) in the block, or do not enter it for this batch"
            )
        turn = self._position.turn
        if turn is not None:
            turn.used = True
            if not turn.idle:
                self._position.batches += 1
            self._position.at_end = turn.final and self._closes
        if self._closes:
            self._check_unchanged()
            self._update()

    def _leave_autocast(self) -> None:
        autocast = self._precision.autocast
        if autocast is not None:
            autocast.__exit__(None, None, None)
