"""What happened in the last update, without waiting for the device before somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fallline.engine.clipping import Measured, MeasuredByKernel
from fallline.engine.statistics import GradientStats

__all__ = ["UpdateReport"]


class UpdateReport:
    """`stepper.last`. Every property is a plain number (one for each clip group where there are several).

    Reading one waits for the device; not reading it costs nothing.
    """

    __slots__ = (
        "_found_inf",
        "_lr",
        "_measured",
        "_scale",
        "micro_batches",
        "statistics",
        "update",
    )

    def __init__(
        self,
        update: int,
        micro_batches: int,
        measured: Measured | MeasuredByKernel,
        found_inf: bool | Tensor,
        scale: float | Tensor,
        lr: Sequence[Any],
        statistics: GradientStats | None,
    ) -> None:
        self.update = update  # counted from 0
        self.micro_batches = micro_batches  # on this rank
        self.statistics = statistics
        self._measured = measured
        self._found_inf = found_inf
        self._scale = scale
        self._lr = lr

    @property
    def norm(self) -> float | list[float]:
        """The norm of the true gradient (loss scale and weights divided out), before clipping."""
        return _plain(self._measured.norms)

    @property
    def coefficient(self) -> float | list[float]:
        """What clipping multiplied the gradient with; 1 where it did not clip."""
        return _plain(self._measured.coefficients)

    @property
    def clipped(self) -> bool:
        coefficients = self.coefficient
        every = coefficients if isinstance(coefficients, list) else [coefficients]
        return any(c < 1.0 for c in every)

    @property
    def skipped(self) -> bool:
        """The gradient was not finite, and the update was not applied."""
        return bool(self._found_inf)

    @property
    def scale(self) -> float:
        """The loss scale that the window was computed with (1 without float16)."""
        return float(self._scale)

    @property
    def lr(self) -> float | list[float]:
        """The learning rate of the update, one for each parameter group where there are several."""
        return _plain([float(lr) for lr in self._lr])

    def __repr__(self) -> str:
        return (
            f"UpdateReport(update={self.update}, norm={self.norm}, clipped={self.clipped}, coefficient={self.coefficient}, "
            f"scale={self.scale}, skipped={self.skipped}, lr={self.lr})"
        )


def _plain(values: list[float] | Tensor) -> float | list[float]:
    numbers: list[float] = values if isinstance(values, list) else values.tolist()
    return numbers[0] if len(numbers) == 1 else numbers
