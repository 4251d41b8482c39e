"""What is measured per parameter at one update, and about which parameters. Knows no torch."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan
from typing import Any

__all__ = ["COLUMNS", "FROZEN", "WIDTH", "WITH", "WITHOUT", "Layout", "ParameterInfo", "Sample"]

# One row per parameter. NaN: not measured; a parameter without a gradient has NaN in all gradient columns.
COLUMNS = (
    "norm",  # of the gradient that the step used (after clipping, without the loss scale)
    "mean",
    "std",
    "largest",  # largest absolute value
    "zeros",  # share of exact zeros, 0..1
    "nonfinite",  # count of NaN and Inf
    "tiny",  # share of the nonzero values that were below the smallest normal float16 in backward
    "weight",  # norm of the parameter
    "ratio",  # norm of the change that the step made / norm of the parameter before it
    "state",  # FROZEN, WITHOUT or WITH a gradient
)
WIDTH = len(COLUMNS)
WITHOUT, WITH, FROZEN = 0.0, 1.0, 2.0  # FROZEN: requires_grad is False


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter as people know it."""

    name: str  # as in named_parameters()
    module: str = ""  # type of the module that owns it ("Linear"); "" when not known
    depth: int = 0  # position from the input of the model
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def count(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(slots=True)
class Layout:
    """The parameters that the rows of a sample stand for, in order. A new one when parameters are added."""

    id: int
    parameters: list[ParameterInfo]


@dataclass(slots=True)
class Sample:
    """The numbers of all parameters at one update: `values` row by row, `COLUMNS` wide.

    `pending` holds them on the device until the background thread calls `resolve`.
    """

    layout: Layout
    pending: Any = None
    values: array[float] = field(default_factory=lambda: array("f"))
    index: int = 0  # the update
    signal: float = (
        nan  # cosine of these gradients with those of the sample before: 0 for pure noise
    )

    def resolve(self) -> None:
        """Bring the numbers to the host. Waits for the device: background thread only."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            numbers, self.signal = pending()
            self.values = array("f", numbers)

    def column(self, name: str) -> list[float]:
        """One number per parameter."""
        return self.values[COLUMNS.index(name) :: WIDTH].tolist()

    def total_norm(self) -> float:
        """Norm over all parameters that have a gradient; NaN when none has."""
        squares = [n * n for n in self.column("norm") if n == n]
        return sum(squares) ** 0.5 if squares else nan
