"""One micro-batch as a state machine: outside → forward → done → outside. Anything else is an error that says what to do."""

from __future__ import annotations

from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING

from torch import Tensor

from fallline.engine.forget import forget_gradients
from fallline.errors import EngineError

if TYPE_CHECKING:
    from fallline.engine.stepper import Stepper

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

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._state = _OUTSIDE
        self.last = False  # what `micro_batch(last=...)` was told
        self._closes = False
        self.broken = False  # a backward failed half-way: the window holds part of a gradient

    def check_outside(self, what: str) -> None:
        if self._state is not _OUTSIDE:
            raise EngineError(
                f"{what} inside a micro_batch: leave the `with stepper.micro_batch()` block first"
            )

    def __enter__(self) -> MicroBatch:
        self.check_outside("a second micro_batch()")
        if self.broken:
            raise EngineError(
                "a backward of this window failed half-way: call stepper.discard() to forget the window, or stop"
            )
        stepper = self._stepper
        window, turn = stepper._window, stepper._turn
        if turn is None:
            self._closes = self.last or window.count + 1 >= stepper.accumulate
        else:
            if turn.used:
                raise EngineError(
                    "a second micro_batch() for one batch of over(): over() gives one batch for one micro-batch"
                )
            self._closes = (
                self.last
                or turn.last
                or (stepper._replicas.size == 1 and window.count + 1 >= stepper.accumulate)
            )
        if window.count == 0:
            # At the beginning, not after the step: what other losses left behind in the meantime goes too.
            forget_gradients(stepper.optimizers)
        stepper._updated = False
        stepper._replicas.enter(synchronise=self._closes)
        if stepper._precision.autocast is not None:
            stepper._precision.autocast.__enter__()  # type: ignore[no-untyped-call]
        self._state = _FORWARD
        return self

    def backward(self, loss: Tensor, weight: float | Tensor | None = None) -> None:
        """Backward of this micro-batch. `loss` is its mean; or, with `weight`, its sum over that many things (tokens, samples)."""
        if self._state is not _FORWARD:
            if self._state is _DONE:
                raise EngineError(
                    "a second backward in one micro_batch: add the losses and call backward once"
                )
            raise EngineError(
                "backward outside: call it inside `with stepper.micro_batch() as micro:`, together with the forward pass"
            )
        if loss.numel() != 1:
            raise EngineError(
                f"the loss has {loss.numel()} elements: give backward one number, a mean, or a sum and its weight"
            )
        if not loss.requires_grad:
            raise EngineError(
                "the loss does not depend on any parameter: was it computed under no_grad, or detached?"
            )
        stepper = self._stepper
        window, precision, turn = stepper._window, stepper._precision, stepper._turn
        checked = window.check(weight)
        if turn is not None:
            # This rank has no data left: it takes part in the synchronisation, with nothing
            if turn.idle:
                checked, loss = 0.0, loss * 0.0
            window.known_total = turn.total
        if weight is not None and precision.scaler is not None and not precision.has_reference:
            # Waits for the device, once in a run.
            replicas = stepper._replicas
            precision.set_reference(
                replicas.largest(float(checked), stepper._device)
                if replicas.size > 1
                else float(checked)
            )
        self._leave_autocast()  # backward runs in the dtypes that the forward pass chose
        window.add(checked, weight is not None)
        if self._closes:
            window.start_total()
        self._state = _DONE
        self.broken = True
        precision.scaled(loss).backward()  # type: ignore[no-untyped-call]
        self.broken = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stepper = self._stepper
        state, self._state = self._state, _OUTSIDE
        if state is _FORWARD:
            self._leave_autocast()
        stepper._replicas.leave()
        if kind is not None:
            return
        if state is _FORWARD:
            raise EngineError(
                "micro_batch ended without backward: call micro.backward(loss) in the block, or do not enter it for this batch"
            )
        turn = stepper._turn
        if turn is not None:
            turn.used = True
            if not turn.idle:
                stepper._position.batches += 1
        if self._closes:
            stepper._update()

    def _leave_autocast(self) -> None:
        autocast = self._stepper._precision.autocast
        if autocast is not None:
            autocast.__exit__(None, None, None)
