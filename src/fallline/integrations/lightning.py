"""For the Lightning Trainer, of `lightning` and of `pytorch_lightning`:

    trainer = L.Trainer(callbacks=[FalllineCallback()])                       # watched like `fallline run`
    trainer = L.Trainer(accumulate_grad_batches=4, callbacks=[ExactAccumulation(mean_over=tokens)])

Lightning's closure runs inside `optimizer.step`: what the step really used is looked at when the closure has run, before clipping
and after unscaling. The taps know this order; the callback only says when training begins and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fallline.errors import EngineError
from fallline.integrations._exact import ExactWindow
from fallline.integrations._watching import Watching, missing

__all__ = ["ExactAccumulation", "FalllineCallback"]


def _bases() -> tuple[type, ...]:
    """Callback of the Lightning that the program uses: both, where both are imported."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = [sys.modules[name].Callback for name in names if name in sys.modules]
    if not found:
        for name in names:
            try:
                found.append(import_module(name).Callback)
                break
            except ImportError as error:
                reason = error
        else:
            raise missing("lightning", reason) from None
    return tuple(dict.fromkeys(found))


_Callback: Any = type("_Callback", _bases(), {})


class FalllineCallback(Watching, _Callback):  # type: ignore[misc]
    """Watches `trainer.fit`. Options as in `Watching`."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.begin(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.end(exception)


class ExactAccumulation(_Callback):  # type: ignore[misc]
    """Makes accumulated gradients those of the one big batch: divided once, by what was really accumulated on all ranks.

    Lightning divides every loss by `accumulate_grad_batches`. The remainder at the end of an epoch comes out too small by that,
    and means over different numbers of tokens count alike. `mean_over(batch)` says how many things (tokens, samples) the loss of a
    batch is a mean over; without it every micro-batch counts the same.
    """

    def __init__(self, mean_over: Callable[[Any], Any] | None = None) -> None:
        self.mean_over = mean_over
        self._batch: Any = None
        self._window: ExactWindow | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise EngineError(
                "ExactAccumulation corrects Lightning's own accumulation, and this module optimizes by hand: "
                "use fallline.Stepper in its training_step"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._window = ExactWindow([trainer.strategy.model], pl_module.device)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        assert self._window is not None, "training has started"
        factor = self._window.add(None if self.mean_over is None else self.mean_over(self._batch))
        if factor is not None:
            # on its way back only: the loss itself stays as it is logged
            loss.register_hook(lambda gradient: gradient * factor)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are complete, synchronised and unscaled; clipping comes next."""
        if self._window is not None:
            held = (p for group in optimizer.param_groups for p in group["params"])
            self._window.complete(held, trainer.accumulate_grad_batches)
