"""Learning rate schedulers: they advance with applied updates, or with complete passes over the data, and nobody else moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from fallline.engine.ownership import unwrapped
from fallline.errors import EngineError

__all__ = ["Schedule"]


class Schedule:
    """The schedulers of a Stepper."""

    def __init__(
        self, per_update: list[Any], per_epoch: list[Any], optimizers: Sequence[Any]
    ) -> None:
        self.per_update, self.per_epoch = per_update, per_epoch
        for scheduler in self.all:
            _check(scheduler, optimizers)
        if len({id(s) for s in self.all}) < len(self.all):
            raise EngineError(
                "a scheduler is given twice and would advance twice: give it once, as scheduler= or as epoch_scheduler="
            )
        self.restart()

    @property
    def all(self) -> list[Any]:
        return [*self.per_update, *self.per_epoch]

    def restart(self) -> None:
        """Take every scheduler as it is now: at the beginning, and after loading."""
        self._expected: list[int | None] = [None] * len(self.all)

    def after_update(self) -> None:
        self._advance(range(len(self.per_update)))

    def after_epoch(self) -> None:
        self._advance(range(len(self.per_update), len(self.all)))

    def _advance(self, which: range) -> None:
        for i in which:
            scheduler, expected = self.all[i], self._expected[i]
            now = getattr(scheduler, "last_epoch", None)
            # Less than expected: its state was loaded by hand, which is fine.
            if expected is not None and now is not None and now > expected:
                raise EngineError(
                    f"{type(scheduler).__name__} was also stepped by hand ({now - expected} time{'s' if now - expected > 1 else ''} since the "
                    "Stepper's last one), so the learning rate runs ahead: remove scheduler.step() from the loop, or do not give the "
                    "scheduler to the Stepper"
                )
            scheduler.step()
            self._expected[i] = getattr(scheduler, "last_epoch", None)


def _check(scheduler: Any, optimizers: Sequence[Any]) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise EngineError(
            "ReduceLROnPlateau waits for a metric: call its step(metric) yourself, after each evaluation"
        )
    own = getattr(scheduler, "optimizer", None)
    if own is None:  # Accelerate's has it one deeper
        own = getattr(getattr(scheduler, "scheduler", None), "optimizer", None)
    if own is not None and all(unwrapped(own) is not o for o in optimizers):
        raise EngineError(
            f"{type(scheduler).__name__} was made for a different optimizer, so the learning rate of this one would never change: "
            "build the scheduler from the optimizer that is given to the Stepper"
        )
