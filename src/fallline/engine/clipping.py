"""Clipping: norms are measured once, and the gradients are multiplied once, or not at all.

`measure` reads the gradients and says what they have to be multiplied with; `scale` does it. On a CPU the numbers
are Python floats, because there they are known at once. On a device they stay there: the host never waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fallline.engine.gradients import Parameters, Per, as_real, local, sum_over_shards
from fallline.engine.statistics import has_kernel, moments_of, triton_installed
from fallline.errors import EngineError

__all__ = [
    "Measured",
    "MeasuredByKernel",
    "check_threshold",
    "clip_by_value",
    "clip_grad_norm_",
    "measure",
]

_EPSILON = 1e-6  # torch's: a norm of zero must not divide
_EPSILON_32 = c_float(_EPSILON).value


@dataclass(slots=True)
class Measured:
    """One number for each clip group: lists of floats from a CPU, tensors on a device."""

    norms: list[float] | Tensor
    coefficients: list[float] | Tensor
    multipliers: list[float] | Tensor
    # Some norm is not finite; a float32 0 or 1 on a device, as GradScaler has it
    found_inf: bool | Tensor
    # 1 / multiplier of a single group, as the fused optimizers want it
    inverse: Tensor | None = None
    moments: Tensor | None = None

    def scale(self, grads: list[Tensor], groups: tuple[int, ...]) -> None:
        """Multiply every gradient by its group's multiplier, once; not at all where it is 1."""
        multipliers = self.multipliers
        if len(multipliers) == 1:
            if isinstance(multipliers, Tensor) or multipliers[0] != 1.0:
                torch._foreach_mul_(local(grads), multipliers[0])
        elif isinstance(multipliers, Tensor):
            torch._foreach_mul_(local(grads), list(multipliers[list(groups)]))
        else:
            torch._foreach_mul_(local(grads), [multipliers[group] for group in groups])


class MeasuredByKernel:
    """The same from the kernel. Its numbers are views of one small tensor, made when they are asked for."""

    __slots__ = ("_read", "_result", "dtype", "table")

    def __init__(self, table: Any, read: Tensor, result: Tensor) -> None:
        self.table = table
        self._read = read
        self._result = result
        self.dtype: torch.dtype = table.layout.dtype

    @property
    def moments(self) -> Tensor:
        """Statistics of each gradient, added up from what was read."""
        return self.table.moments(self._read) if self._read.dim() == 1 else self._read

    @property
    def norms(self) -> Tensor:
        return self._result[0]

    @property
    def coefficients(self) -> Tensor:
        return self._result[1]

    @property
    def multipliers(self) -> Tensor:
        return self._result[2]

    @property
    def inverse(self) -> Tensor:
        return self._result[3, 0]

    @property
    def found_inf(self) -> Tensor:
        return self._result[4, 0] if self._result.shape[1] == 1 else self._result[4].amax()

    def scale(self, grads: list[Tensor], groups: tuple[int, ...]) -> None:
        """Returns at once on the device when the multiplier is 1."""
        self.table.scale(self._result)


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    per: Per = "all",
) -> Tensor:
    """Drop-in for `torch.nn.utils.clip_grad_norm_`: same arguments, same result, one read of the gradients.

    On CUDA the gradients are written only when they have to be clipped, and the host never waits. With
    `per="group"` (give the optimizer) or `per="layer"` (give the model) every group is held to `max_norm` by itself,
    each parameter exactly once, and a tensor with the norm of each group is returned. `foreach=False` asks for
    torch's operations instead of the kernel.
    """
    check_threshold("max_norm", max_norm)
    if not isinstance(parameters, (Tensor, nn.Module, Optimizer)):
        parameters = list(parameters)  # it may be a generator
        if per == "all" and norm_type == 2.0 and foreach is not False and triton_installed():
            from fallline.engine.tables import recall

            table = recall(parameters)
            if table is not None:
                known = MeasuredByKernel(table, *table.measure(1.0, None, float(max_norm)))
                return _clip(known, [], (0,), per, norm_type, error_if_nonfinite)
    with torch.no_grad():
        grads, groups = Parameters.of(parameters, per).with_gradient()
        if not grads:
            return torch.tensor(0.0) if per == "all" else torch.zeros(0)
        measured = measure(
            grads, groups, 1.0, float(max_norm), float(norm_type), kernel=foreach is not False
        )
        if (
            isinstance(measured, MeasuredByKernel)
            and isinstance(parameters, list)
            and len(grads) == len(parameters)
        ):
            from fallline.engine.tables import remember

            remember(parameters, grads, measured.table)
        return _clip(measured, grads, groups, per, norm_type, error_if_nonfinite)


def clip_by_value(grads: list[Tensor], value: float) -> None:
    """Hold every element within ±value, in place; of a complex one, its real and its imaginary part."""
    here = [g.coalesce() if g.is_sparse else g for g in local(grads)]
    dense = [as_real(g._values() if g.is_sparse else g) for g in here]
    torch._foreach_clamp_min_(dense, -value)
    torch._foreach_clamp_max_(dense, value)
    for grad, whole in zip(grads, here, strict=True):
        if grad.is_sparse and whole is not grad:
            grad.copy_(whole)


def _clip(measured: Measured | MeasuredByKernel, grads: list[Tensor], groups: tuple[int, ...], per: Per, norm_type: float, error_if_nonfinite: bool) -> Tensor:  # fmt: skip
    if error_if_nonfinite and bool(measured.found_inf):  # waits for the device, as torch's does
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    measured.scale(grads, groups)
    norms = measured.norms if per != "all" else measured.norms[0]
    dtype = measured.dtype if isinstance(measured, MeasuredByKernel) else _promoted(grads)
    if isinstance(norms, Tensor):
        return norms if norms.dtype is dtype else norms.to(dtype)
    return torch.tensor(norms, dtype=dtype, device=grads[0].device)


def measure(
    grads: list[Tensor],
    groups: tuple[int, ...],
    factor: float | Tensor,
    max_norm: float | None,
    norm_type: float = 2.0,
    *,
    kernel: bool = True,
    few: bool = False,
) -> Measured | MeasuredByKernel:
    """The norm of each group after multiplying by `factor`, and the one scalar (factor x clip coefficient) it needs.

    `few`: what `Parameters.are_few` said of their parameters, so that it need not be found out for every update.
    """
    if (
        few
        and norm_type == 2.0
        and (norm := _norm_of_few(grads, float(factor), max_norm)) is not None
    ):
        coefficient = 1.0 if max_norm is None else _coefficient(norm, max_norm, torch.float32)
        return Measured([norm], [coefficient], [coefficient * float(factor)], not isfinite(norm))
    if grads[0].is_cuda:
        return _measure_on_device(grads, groups, factor, max_norm, norm_type, kernel)
    norms = [norm * float(factor) for norm in _norms_on_host(grads, groups, norm_type)]
    dtype = grads[0].dtype
    coefficients = [1.0 if max_norm is None else _coefficient(n, max_norm, dtype) for n in norms]
    multipliers = [coefficient * float(factor) for coefficient in coefficients]
    return Measured(norms, coefficients, multipliers, not all(map(math.isfinite, norms)))


def check_threshold(name: str, value: float) -> None:
    """A threshold that is NaN lets everything pass, and a negative one turns the gradient around."""
    if math.isnan(value) or value < 0:
        raise EngineError(f"{name}={value} is not a threshold: give a number of 0 or more")


def _coefficient(norm: float, max_norm: float, dtype: torch.dtype) -> float:
    """Rounded where torch rounds, so that a loop that changes over to the Stepper keeps its bits."""
    if norm + _EPSILON < 0.99 * max_norm:
        return 1.0
    if dtype is torch.float32:
        reciprocal = _float32(1.0 / _float32(_float32(norm) + _EPSILON_32))
        coefficient = _float32(reciprocal * _float32(max_norm))
    else:
        coefficient = 1.0 / (norm + _EPSILON) * max_norm
    return 1.0 if coefficient > 1.0 else coefficient  # a NaN stays a NaN, as in torch


def _float32(value: float) -> float:
    return c_float(value).value


def _norm_of_few(grads: list[Tensor], factor: float, max_norm: float | None) -> float | None:
    """A few numbers are quicker added up here than in two more operations of torch; those are needed only where clipping has to round as torch does."""
    try:
        norms = torch._foreach_norm(grads, 2.0, torch.float32)
    except (RuntimeError, NotImplementedError):  # sparse gradients
        return None
    norm = math.hypot(*map(Tensor.item, norms)) * factor
    if max_norm is None or norm < 0.99 * max_norm:
        return norm
    return float(torch.linalg.vector_norm(torch.stack(norms))) * factor


def _norms_on_host(grads: list[Tensor], groups: tuple[int, ...], norm_type: float) -> list[float]:
    norms = _norm_of_each(grads, norm_type)
    if groups[-1] == 0:
        return [float(torch.linalg.vector_norm(norms, norm_type))]
    index = torch.tensor(groups)
    return [
        float(torch.linalg.vector_norm(norms[index == group], norm_type))
        for group in range(groups[-1] + 1)
    ]


def _norm_of_each(grads: list[Tensor], norm_type: float) -> Tensor:
    """One norm for each gradient, of the whole one where this rank holds a shard."""
    here = local(grads)
    norms = torch.stack(list(_norms_of(here, norm_type)))
    if here is grads:
        return norms
    if math.isinf(norm_type):
        return sum_over_shards(norms, grads, largest=True)
    return sum_over_shards(norms**norm_type, grads) ** (1.0 / norm_type)


def _norms_of(here: list[Tensor], norm_type: float) -> Sequence[Tensor]:
    """In one dtype, and never in half precision: a norm kept in bfloat16 has three digits."""
    if any(g.is_complex() for g in here):
        here = [as_real(g) if g.is_complex() else g for g in here]
    dtypes = {g.dtype for g in here}
    wide = (
        None
        if dtypes == {torch.float32}
        else torch.float64
        if torch.float64 in dtypes
        else torch.float32
    )
    try:
        return torch._foreach_norm(here, norm_type, dtype=wide)
    except (RuntimeError, NotImplementedError):  # sparse gradients, or several devices
        dense = [g.coalesce()._values() if g.is_sparse else g for g in here]
        return [
            torch.linalg.vector_norm(g, norm_type, dtype=wide).to(here[0].device) for g in dense
        ]


def _promoted(grads: list[Tensor]) -> torch.dtype:
    dtype = grads[0].dtype
    for other in {g.dtype for g in grads}:
        dtype = torch.promote_types(dtype, other)
    return dtype.to_real()


def _measure_on_device(
    grads: list[Tensor],
    groups: tuple[int, ...],
    factor: float | Tensor,
    max_norm: float | None,
    norm_type: float,
    kernel: bool,
) -> Measured | MeasuredByKernel:
    host_factor, device_factor = (1.0, factor) if isinstance(factor, Tensor) else (factor, None)
    if kernel and norm_type == 2.0 and has_kernel(grads[0]):
        from fallline.engine.tables import table_of

        here = local(grads)
        table = table_of(here, groups)
        if table is not None:
            if here is grads:
                return MeasuredByKernel(table, *table.measure(host_factor, device_factor, max_norm))
            moments = moments_of(grads)  # of the whole gradients, of which this rank holds shards
            return MeasuredByKernel(
                table, moments, table.combine(moments, host_factor, device_factor, max_norm)
            )
    norms = _norm_of_each(grads, norm_type)
    each = [
        norms[[i for i, of in enumerate(groups) if of == group]] for group in range(groups[-1] + 1)
    ]
    group_norms = torch.stack([torch.linalg.vector_norm(n, norm_type) for n in each]) * factor
    coefficients = (
        torch.ones_like(group_norms)
        if max_norm is None
        else (max_norm / (group_norms + _EPSILON)).clamp(max=1.0)
    )
    multipliers = coefficients * factor
    found = (~torch.isfinite(group_norms)).any().float()
    return Measured(
        group_norms, coefficients, multipliers, found, multipliers[0].reciprocal().float()
    )
