"""The optimizer step: accumulation, precision, clipping, synchronisation and scheduling in their one right order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from fallline.engine.apply import can_fuse, step_fused, step_plain
from fallline.engine.clipping import Measured, MeasuredByKernel, check_threshold, measure
from fallline.engine.data import Position, Turn, batches_left, turns
from fallline.engine.gradients import Parameters, Per, layer_of, local
from fallline.engine.micro_batch import MicroBatch
from fallline.engine.noise import Noise
from fallline.engine.precision import Precision, PrecisionName
from fallline.engine.replicas import Replicas
from fallline.engine.statistics import moments_of, stats_of
from fallline.engine.update import UpdateReport
from fallline.engine.window import Window
from fallline.errors import EngineError

__all__ = ["Stepper"]

T = TypeVar("T")


class Stepper:
    """Steps the optimizer right by construction.

        stepper = fallline.Stepper(model, optimizer, accumulate=4, clip_norm=1.0, precision="bf16", scheduler=scheduler)
        for inputs, targets in stepper.over(loader):
            with stepper.micro_batch() as micro:
                loss = loss_fn(model(inputs), targets)
                micro.backward(loss)                       # or micro.backward(loss_sum, weight=number_of_tokens)

    The accumulated gradients are divided once, at the step, by what was really accumulated on all ranks. Loss scale, weight
    and clip coefficient become one scalar, applied in one multiply, or inside the fused optimizer step, or not at all.

    accumulate   micro-batches for one update; the remainder at the end of the data makes an exact update of its own
    clip_norm    clip to this norm: of all parameters together, or of each parameter group or layer (`clip_per`)
    clip_value   clip each element instead
    precision    "fp32", "bf16" or "fp16" (with a GradScaler, yours or its own)
    scheduler    one or several; they advance with every applied update, and only then
    noise        standard deviation of Gaussian noise on the gradient, or a function of the update's number
    nonfinite    "skip" an update whose gradient is not finite (default), "raise", or "apply" it as torch would. On a
                 GPU, skipping makes the host wait once for an update, unless the optimizer is fused and there is no scheduler
    statistics   keep every parameter's gradient statistics in `stepper.last.statistics`
    process_group   the ranks that see different data, where DDP or FSDP2 cannot say it
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        clip_per: Per = "all",
        norm_type: float = 2.0,
        precision: PrecisionName = "fp32",
        scaler: GradScaler | None = None,
        scheduler: Any = None,
        noise: float | Callable[[int], float] | None = None,
        nonfinite: Literal["skip", "raise", "apply"] = "skip",
        statistics: bool = False,
        process_group: Any = None,
    ) -> None:
        self.models = _listed(model)
        self.optimizers = _listed(optimizer)
        self.schedulers = _listed(scheduler)
        _check_choices(
            accumulate, clip_norm, clip_value, nonfinite, self.optimizers, self.schedulers
        )
        self.accumulate = accumulate
        self.clip_norm = None if clip_norm is None else float(clip_norm)
        self.clip_value = clip_value
        self.clip_per = clip_per
        self.norm_type = float(norm_type)
        self.nonfinite = nonfinite
        self.keep_statistics = statistics
        self.last: UpdateReport | None = None
        self.attempts = 0  # updates tried, the skipped ones included
        self._skipped: float | Tensor = 0.0
        self._replicas = Replicas(self.models, process_group)
        self._parameters = self._collect()
        self._few = self._parameters.are_few
        self._device = self._parameters.tensors[0].device
        self._precision = Precision(precision, self._device, self._parameters.tensors, scaler)
        self._noise = None if noise is None else Noise(noise)
        self._window = Window(self._replicas, self._device)
        self._position = Position()
        self._turn: Turn | None = None
        self._micro = MicroBatch(self)
        self._finish = (
            self._finish_gradients if clip_value is not None or noise is not None else None
        )
        # Whether the optimizers' own kernels multiply and skip, so that gradients are never rewritten.
        self._fused = self._finish is None and all(
            getattr(o, "_step_supports_amp_scaling", False) for o in self.optimizers
        )
        self._updated = False
        self._warned = False

    # -- the loop ---------------------------------------------------------------------------------------------------

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches, one for one `micro_batch`. The remainder at the end is an update of its own.

        Samplers get their `set_epoch`, ranks with less data stay in step with the others, and after `load_state_dict`
        the pass goes on where it stopped.
        """
        if self._turn is not None:
            raise EngineError(
                "over() inside over(): finish or break out of one pass before the next begins"
            )
        position, replicas = self._position, self._replicas
        iterator = position.open(loader)
        length = batches_left(loader, position)
        try:
            for batch, turn in turns(
                iterator,
                length,
                position,
                self.accumulate,
                self._window.count,
                replicas,
                self._device,
            ):
                self._turn = turn
                yield batch
                if not turn.used:
                    if replicas.size > 1:
                        raise EngineError(
                            "a batch from over() was given no micro_batch(): on several ranks each must have exactly one"
                        )
                    position.batches += 1
        finally:
            self._turn = None
        if self._window.count:
            self.step()
        position.close()

    def micro_batch(self, *, last: bool = False) -> MicroBatch:
        """A context for the forward pass and `backward` of one micro-batch. The last one of a window makes the update.

        Without `over`, say `last=True` for the last micro-batch of the data, so that a remainder is synchronised and applied.
        """
        self._micro.last = last
        return self._micro

    def step(self) -> None:
        """Make an update of what is accumulated now. Windows close by themselves: this is for a remainder without `over`."""
        self._micro.check_outside("step()")
        if self._window.count == 0:
            raise EngineError(
                "step() without backward: no micro-batch was accumulated since the last update"
            )
        if self._replicas.size > 1 and not self._window.synchronised:
            tensors = [p for p in self._parameters.tensors if p.requires_grad]
            averaged = self._replicas.average([p.grad for p in tensors], tensors)
            for parameter, gradient in zip(tensors, averaged, strict=True):
                parameter.grad = gradient
            self._window.start_total()
        self._update()

    def discard(self) -> None:
        """Forget what is accumulated in the open window."""
        self._micro.check_outside("discard()")
        self._window.clear()
        self._micro.broken = False

    @property
    def updated(self) -> bool:
        """Whether the last micro-batch made an update: the moment to log `stepper.last`, or to save."""
        return self._updated

    @property
    def updates(self) -> int:
        """How many updates were applied. Waits for the device where a fused optimizer decides there."""
        return self.attempts - int(self._skipped)

    @property
    def epoch(self) -> int:
        """Complete passes of `over`."""
        return self._position.epoch

    @property
    def scaler(self) -> GradScaler | None:
        return self._precision.scaler

    # -- the update -------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        held = 0
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                held += len(group["params"])
        if held != len(self._parameters.tensors):  # a parameter group was added
            self._parameters = self._collect()
            self._few = self._parameters.are_few
        grads, groups = self._parameters.with_gradient()
        if not grads:
            self._window.clear()
            raise EngineError(
                "backward reached no parameter of the optimizer: is the loss computed from this model's output?"
            )

        # One scalar: the weight on all ranks, the loss scale, and the clip coefficient.
        factor = self._precision.factor(self._window.factor(), self._device)
        measured = measure(grads, groups, factor, self.clip_norm, self.norm_type, few=self._few)
        found_inf = self._judge(measured)
        # Before the multiply: statistics are of what was read
        self._report(grads, factor, measured, found_inf)

        if self._fused and can_fuse(grads, groups):
            applied = step_fused(self.optimizers, measured, found_inf, self._precision)
        else:
            applied = step_plain(
                self.optimizers, grads, groups, measured, found_inf, self._precision, self._finish
            )
        if self.scaler is not None:
            self.scaler.update()
        # Waits for the device, where a fused optimizer decides there
        if self.schedulers and bool(applied):
            for scheduler in self.schedulers:
                scheduler.step()

        self.attempts += 1
        self._skipped = self._skipped + found_inf
        self._window.clear()
        self._updated = True

    def _judge(self, measured: Measured | MeasuredByKernel) -> bool | Tensor:
        """Whether the update must not be applied: False at once, or the device's own answer."""
        if self.nonfinite == "apply" and self.scaler is None:
            return False
        found_inf = measured.found_inf
        # "raise" waits for the device
        if found_inf is True or (self.nonfinite == "raise" and bool(found_inf)):
            what = f"the gradient of update {self.attempts} is not finite (`fallline run` names the operation it comes from)"
            if self.nonfinite == "raise":
                self._window.clear()
                raise EngineError(f'{what}; nonfinite="raise" stops here')
            if self.scaler is None and not self._warned:
                self._warned = True
                warnings.warn(
                    f"{what}: it was not applied. Further ones are counted in stepper.last.skipped",
                    stacklevel=5,
                )
        return found_inf

    def _finish_gradients(self, grads: list[Tensor]) -> None:
        if self.clip_value is not None:
            here = local(grads)
            torch._foreach_clamp_min_(here, -self.clip_value)
            torch._foreach_clamp_max_(here, self.clip_value)
        if self._noise is not None:
            self._noise.add_(grads, self.attempts)

    def _report(
        self,
        grads: list[Tensor],
        factor: float | Tensor,
        measured: Measured | MeasuredByKernel,
        found_inf: bool | Tensor,
    ) -> None:
        statistics = None
        if self.keep_statistics:
            moments = measured.moments if measured.moments is not None else moments_of(grads)
            statistics = stats_of(grads, self._parameters.names_with_gradient(), moments, factor)
        scale: float | Tensor = 1.0
        if self.scaler is not None:
            scale = self._precision.scale_now(self._device)
        lr = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.last = UpdateReport(
            self.attempts, self._window.count, measured, found_inf, scale, lr, statistics
        )

    # -- what can go wrong ------------------------------------------------------------------------------------------

    def _collect(self) -> Parameters:
        """Every optimizer's parameters, each once, named as in the model."""
        names: dict[int, tuple[str, Tensor]] = {}
        for number, model in enumerate(self.models):
            prefix = f"{number}." if len(self.models) > 1 else ""
            for name, parameter in model.named_parameters():
                names.setdefault(id(parameter), (prefix + name, parameter))
        held = [
            (f"{n}.{m}", p)
            for n, o in enumerate(self.optimizers)
            for m, g in enumerate(o.param_groups)
            for p in g["params"]
        ]
        if not held:
            raise EngineError("the optimizer holds no parameters")
        ids = [id(p) for _, p in held]
        if len(set(ids)) != len(ids):
            raise EngineError(
                "a parameter belongs to two optimizers, or is twice in one: each update would step it twice"
            )
        missing = [
            name for key, (name, p) in names.items() if p.requires_grad and key not in set(ids)
        ]
        if missing:
            raise EngineError(
                f"{_some(missing)} belong{'s' if len(missing) == 1 else ''} to no optimizer and would never be trained: "
                "add to an optimizer, or freeze with requires_grad_(False)"
            )
        foreign = [p for _, p in held if id(p) not in names]
        if foreign and self._replicas.size > 1:
            raise EngineError(
                f"the optimizer holds {len(foreign)} parameters that are not in the model: no rank would synchronise them"
            )
        labels = [
            names[id(p)][0] if id(p) in names else f"parameter {i}" for i, (_, p) in enumerate(held)
        ]
        groups = None
        if self.clip_per == "group":
            groups = [group for group, _ in held]
        elif self.clip_per == "layer":
            groups = list(map(layer_of, labels))
        elif self.clip_per != "all":
            raise EngineError(
                f'clip_per={self.clip_per!r} is not known: use "all", "group" or "layer"'
            )
        return Parameters(labels, [p for _, p in held], groups)

    # -- saving -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything of the engine's own, also in the middle of a window: then the accumulated gradients are in it."""
        self._micro.check_outside("state_dict()")
        window: dict[str, Any] = {"count": self._window.count}
        if self._window.count:
            if self._replicas.fsdp:
                raise EngineError(
                    "FSDP2 keeps an open window's gradients inside: save when stepper.updated is true"
                )
            named = zip(self._parameters.names, self._parameters.tensors, strict=True)
            window |= {
                "weight": float(self._window.weight),
                "weighted": self._window.weighted,
                "gradients": {name: p.grad.clone() for name, p in named if p.grad is not None},
            }
        return {
            "attempts": self.attempts,
            "skipped": float(self._skipped),
            "accumulate": self.accumulate,
            "precision": self._precision.state_dict(),
            "position": self._position.state_dict(),
            "window": window,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._micro.check_outside("load_state_dict()")
        if self._turn is not None:
            raise EngineError(
                "load_state_dict() inside over(): load before the pass begins, and it will go on where it stopped"
            )
        self.attempts = state["attempts"]
        self._skipped = state["skipped"]
        self._precision.load_state_dict(state["precision"])
        self._position.load_state_dict(state["position"])
        self.discard()
        window = state["window"]
        if window["count"]:
            self._window.count = window["count"]
            self._window.weight = window["weight"]
            self._window.weighted = window["weighted"]
            for name, parameter in zip(
                self._parameters.names, self._parameters.tensors, strict=True
            ):
                saved = window["gradients"].get(name)
                parameter.grad = (
                    None
                    if saved is None
                    else saved.to(parameter.device, parameter.dtype, copy=True)
                )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_choices(accumulate: int, clip_norm: float | None, clip_value: float | None, nonfinite: str, optimizers: list[Any], schedulers: list[Any]) -> None:  # fmt: skip
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise EngineError(
            f"accumulate={accumulate!r}: give the number of micro-batches in one update, 1 or more"
        )
    if clip_norm is not None and clip_value is not None:
        raise EngineError(
            "clip_norm and clip_value together: which comes first changes the result; choose one"
        )
    if clip_norm is not None:
        check_threshold("clip_norm", clip_norm)
    if clip_value is not None:
        check_threshold("clip_value", clip_value)
    if nonfinite not in ("skip", "raise", "apply"):
        raise EngineError(f'nonfinite={nonfinite!r} is not known: use "skip", "raise" or "apply"')
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise EngineError(
                "LBFGS recomputes its gradients inside step(closure), past any clipping or accumulation: step it yourself"
            )
    for scheduler in schedulers:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise EngineError(
                "ReduceLROnPlateau waits for a metric: call its step(metric) yourself, after each evaluation"
            )
