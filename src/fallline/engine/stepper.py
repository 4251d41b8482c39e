"""The optimizer step: accumulation, precision, clipping, synchronisation and scheduling in their one right order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from fallline.engine.apply import can_fuse, step_fused, step_plain
from fallline.engine.choices import check_choices
from fallline.engine.clipping import (
    Measured,
    MeasuredByKernel,
    clip_by_value,
    measure,
)
from fallline.engine.collect import collect
from fallline.engine.gradients import Parameters, Per
from fallline.engine.ledger import Ledger
from fallline.engine.micro_batch import MicroBatch
from fallline.engine.noise import Noise
from fallline.engine.ownership import Ownership, unwrapped
from fallline.engine.passes import Pass
from fallline.engine.position import Position
from fallline.engine.precision import Precision, PrecisionName
from fallline.engine.replicas import Replicas
from fallline.engine.rewind import Rewind, restore
from fallline.engine.saving import SAVER
from fallline.engine.schedule import Schedule
from fallline.engine.statistics import moments_of, stats_of
from fallline.engine.update import UpdateReport
from fallline.engine.window import Window, checked_accumulate
from fallline.engine.wrappers import Reduction
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
    epoch_scheduler   one or several that advance once for each complete pass of `over`
    ema          a torch.optim.swa_utils.AveragedModel of the model, updated with every applied update and saved with the rest
    on_spike     a Rewind: go back to a snapshot after a loss spike, without the samples that made it (off by default)
    reduction    what the ranks' gradients are after backward, where the wrapper cannot say: "mean", "sum", or "none" for ranks that
                 train alone
    process_group   the ranks that see different data; read from DDP or FSDP2 unless it is given
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
        epoch_scheduler: Any = None,
        ema: Any = None,
        on_spike: Rewind | None = None,
        noise: float | Callable[[int], float] | None = None,
        nonfinite: Literal["skip", "raise", "apply"] = "skip",
        statistics: bool = False,
        reduction: Reduction | None = None,
        process_group: Any = None,
    ) -> None:
        self.models = _listed(model)
        self.optimizers = [unwrapped(o) for o in _listed(optimizer)]
        check_choices(clip_norm, clip_value, nonfinite, reduction, self.optimizers)
        self.clip_norm = None if clip_norm is None else float(clip_norm)
        self.clip_value = clip_value
        self.clip_per = clip_per
        self.norm_type = float(norm_type)
        self.nonfinite = nonfinite
        self.keep_statistics = statistics
        self.ema = ema
        self.on_spike = on_spike
        self.last: UpdateReport | None = None
        self.attempts = 0  # updates tried, the skipped ones included
        self._skipped: float | Tensor = 0.0
        self._warned = False
        self._schedule = Schedule(_listed(scheduler), _listed(epoch_scheduler), self.optimizers)
        self._replicas = Replicas(self.models, process_group, reduction)
        self._parameters = self._collect()
        self._precision = Precision(precision, self._device, self._parameters.tensors, scaler)
        self._noise = None if noise is None else Noise(noise)
        self._ownership = Ownership(
            self.optimizers, self._replicas.kept, self._replicas.keeps_gradients
        )
        self._ownership.parameters = self._parameters
        self._window = Window(self._replicas, self._device, accumulate)
        self._position = Position()
        self.ledger = Ledger()
        self._micro = MicroBatch(
            self._window,
            self._precision,
            self._replicas,
            self._position,
            self._ownership,
            self._update,
            on_spike,
        )

    # -- the loop ---------------------------------------------------------------------------------------------------

    def over(self, loader: Iterable[T]) -> Pass[T]:
        """The loader's batches, one for one `micro_batch`. The remainder at the end is an update of its own.

        Samplers get their `set_epoch`, and ranks with less data stay in step with the others. A pass that was left with `break`,
        or with the process, continues where it stopped; `next_epoch()` gives up the rest of it.
        """
        return Pass(
            loader,
            self._position,
            self._window,
            self._replicas,
            self._device,
            self.step,
            self._schedule.after_epoch,
            self._first_snapshot,
        )

    def micro_batch(self, *, last: bool = False) -> MicroBatch:
        """A context for the forward pass and `backward` of one micro-batch. The last one of a window makes the update.

        Without `over`, say `last=True` for the last micro-batch of the data, so that a remainder is synchronised and applied.
        """
        self._micro.last = last
        return self._micro

    def step(self) -> None:
        """Make an update of what is accumulated now. Windows close by themselves: this is for a remainder without `over`."""
        self._micro.check_outside("step()")
        self._ownership.check_ours()
        if self._window.count == 0:
            raise EngineError(
                "step() was called without a backward: no micro-batch was accumulated since the last update"
            )
        self._ownership.check_unchanged()
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
        self._clear_window()
        self._micro.broken = False

    def next_epoch(self) -> None:
        """Give up the rest of a pass that was left with `break`: what is accumulated is applied, and `over` begins again."""
        self._micro.check_outside("next_epoch()")
        if self._window.count:
            self.step()
        self._position.close()
        self._schedule.after_epoch()

    @property
    def accumulate(self) -> int:
        """Micro-batches for one update. A change counts from the next window on; on several ranks make it on all of them."""
        return self._window.accumulate

    @accumulate.setter
    def accumulate(self, value: int) -> None:
        self._window.accumulate = checked_accumulate(value)

    @property
    def updated(self) -> bool:
        """Whether the last micro-batch made an update: the moment to log `stepper.last`, or to save."""
        return self._micro.updated

    @property
    def updates(self) -> int:
        """How many updates were applied. Waits for the device where a fused optimizer decides there."""
        return self.attempts - int(self._skipped)

    @property
    def epoch(self) -> int:
        """Complete passes of `over`."""
        return self._position.epoch

    @property
    def reads_data(self) -> bool:
        """Whether over() was ever entered."""
        return self._position.current is not None

    def samples_of(self, update: int) -> tuple[int, list[int]]:
        """The epoch and the dataset's indices that an update (counted from 0, as in `last.update`) was made of, on all ranks.

        Known where over() was given a loader with a global order: `ranks.loader`, or one with `fallline.Order` or `fallline.Share`.
        """
        epoch, begin, end = self.ledger.find(update)
        return epoch, self._position.samples_at(epoch, begin, end)

    @property
    def schedulers(self) -> list[Any]:
        return self._schedule.all

    @property
    def scaler(self) -> GradScaler | None:
        return self._precision.scaler

    @property
    def _device(self) -> torch.device:
        return self._parameters.tensors[0].device

    # -- the update -------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        self._notice_new_parameters()
        grads, groups = self._parameters.with_gradient()
        if not grads:
            self._clear_window()
            raise EngineError(
                "backward reached no parameter of the optimizer: is the loss computed from this model's output?"
            )

        # One scalar: the weight on all ranks, the loss scale, and the clip coefficient.
        factor = self._precision.factor(self._window.factor(), self._device)
        few = self._parameters.are_few
        measured = measure(grads, groups, factor, self.clip_norm, self.norm_type, few=few)
        found_inf = self._judge(measured, factor)
        # Before the multiply: statistics are of what was read
        self._report(grads, factor, measured, found_inf)
        if self.on_spike is not None and self._went_back(self.on_spike, bool(found_inf)):
            return

        # A checkpoint that is being copied must be complete before parameters change
        SAVER.before_step()
        finish = self._finish_gradients if self._must_finish else None
        self._ownership.stepping = True
        try:
            if finish is None and can_fuse(self.optimizers, grads, groups, self._precision):
                applied = step_fused(self.optimizers, measured, found_inf, self._precision)
            else:
                applied = step_plain(
                    self.optimizers, grads, groups, measured, found_inf, self._precision, finish
                )
        finally:
            self._ownership.stepping = False
        if self.scaler is not None:
            self.scaler.update()
        # Waits for the device, where a fused optimizer decides there
        if (self._schedule.per_update or self.ema is not None) and bool(applied):
            self._schedule.after_update()
            if self.ema is not None:
                self.ema.update_parameters(self.models[0])

        self._enter_into_ledger()
        self.attempts += 1
        self._skipped = self._skipped + found_inf
        self._clear_window()
        self._ownership.applied(grads[0])
        self._micro.updated = True
        if self.on_spike is not None and self.on_spike.is_due(self.attempts):
            self._take_snapshot(self.on_spike)

    # -- going back -------------------------------------------------------------------------------------------------

    def _first_snapshot(self) -> None:
        if self.on_spike is None or self.on_spike.has_snapshot:
            return
        if not self._position.has_order:
            raise EngineError(
                "Rewind leaves out the samples of a spike, so it must know them: give over() a loader with a global order "
                "(ranks.loader, or fallline.Order as batch_sampler)"
            )
        self._take_snapshot(self.on_spike)

    def _went_back(self, rewind: Rewind, found_inf: bool) -> bool:
        """Whether this update is a spike on all ranks together, and the run has gone back instead of applying it."""
        total, weight = self._replicas.add_up(rewind.take_sums(), self._device)
        loss = total / weight if weight else math.nan
        begin, end = self._window.began_at, self._position.samples
        if begin is None or end is None:  # not a batch of over(): nobody knows its samples
            return False
        if not self._anywhere(rewind.is_spike(loss, found_inf)):
            rewind.passed(loss)
            return False
        epoch = self._position.epoch
        snapshot = rewind.back(self.attempts, loss, epoch, (begin, end), self._anywhere)
        restore(snapshot, self._restorable)
        self._restore_counters(snapshot.stepper)
        rewind.restore_losses(snapshot.stepper["rewind"])
        self._position.go_back(snapshot.stepper["position"], epoch, begin, end)
        return True

    def _anywhere(self, flag: bool) -> bool:
        return self._replicas.anywhere(flag, self._parameters.tensors)

    def _take_snapshot(self, rewind: Rewind) -> None:
        rewind.keep(self.attempts, self._restorable, self._own_state())

    @property
    def _restorable(self) -> list[Any]:
        ema = [] if self.ema is None else [self.ema]
        return [*self.models, *self.optimizers, *self.schedulers, *ema]

    def _enter_into_ledger(self) -> None:
        behind = self._position.samples
        if behind is not None and self._position.turn is not None:
            begin = self._window.began_at if self._window.began_at is not None else behind
            self.ledger.add(self.attempts, self._position.epoch, begin, behind)

    def _clear_window(self) -> None:
        self._window.clear()
        self._ownership.close()

    def _judge(
        self, measured: Measured | MeasuredByKernel, factor: float | Tensor
    ) -> bool | Tensor:
        """Whether the update must not be applied: False at once, or the device's own answer."""
        empty = isinstance(factor, float) and math.isnan(factor)
        if self.nonfinite == "apply" and self.scaler is None and not empty:
            return False
        found_inf = measured.found_inf
        if empty:
            self._warn(
                f"every micro-batch of update {self.attempts} has weight 0, so there is no gradient and nothing was applied"
            )
            return True
        # "raise" waits for the device
        if found_inf is True or (self.nonfinite == "raise" and bool(found_inf)):
            what = f"the gradient of update {self.attempts} is not finite (`fallline run` names the operation it comes from)"
            if self.nonfinite == "raise":
                self._clear_window()
                raise EngineError(f'{what}; nonfinite="raise" stops here')
            if self.scaler is None:
                self._warn(
                    f"{what}: it was not applied. Further ones are counted in stepper.last.skipped"
                )
        return found_inf

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=5)

    @property
    def _must_finish(self) -> bool:
        return self.clip_value is not None or self._noise is not None

    def _finish_gradients(self, grads: list[Tensor]) -> None:
        if self.clip_value is not None:
            clip_by_value(grads, self.clip_value)
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

    def _notice_new_parameters(self) -> None:
        held = 0
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                held += len(group["params"])
        thawed = any([p.requires_grad for p in self._parameters.frozen])
        if held != len(self._parameters.tensors) or thawed:
            # A parameter group was added, or something was unfrozen: the same questions as at the beginning.
            self._parameters = self._collect()
            self._ownership.parameters = self._parameters

    def _collect(self) -> Parameters:
        return collect(self.models, self.optimizers, self._replicas, self.clip_per)

    # -- saving -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything of the engine's own, also in the middle of a window: then the accumulated gradients are in it."""
        self._micro.check_outside("state_dict()")
        window: dict[str, Any] = {"count": self._window.count}
        if self._window.count:
            if self._replicas.keeps_gradients:
                raise EngineError(
                    "FSDP2 holds the gradients of an unfinished window where they cannot be saved: save when stepper.updated is true"
                )
            named = zip(self._parameters.names, self._parameters.tensors, strict=True)
            window |= {
                "weight": float(self._window.weight),
                "weighted": self._window.weighted,
                "gradients": {name: p.grad.clone() for name, p in named if p.grad is not None},
            }
        return self._own_state() | {"window": window}

    def _own_state(self) -> dict[str, Any]:
        return {
            "attempts": self.attempts,
            "skipped": float(self._skipped),
            "accumulate": self.accumulate,
            "precision": self._precision.state_dict(),
            "position": self._position.state_dict(),
            "ledger": self.ledger.state_dict(),
            "arrivals": self._replicas.arrivals(),
            **({} if self.on_spike is None else {"rewind": self.on_spike.state_dict()}),
        }

    def _restore_counters(self, state: dict[str, Any]) -> None:
        self.attempts = state["attempts"]
        self._skipped = state["skipped"]
        self._precision.load_state_dict(state["precision"])
        self.ledger.load_state_dict(state.get("ledger", {"rows": []}))
        self._schedule.restart()
        self.discard()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._micro.check_outside("load_state_dict()")
        if self._position.turn is not None:
            raise EngineError(
                "load_state_dict() was called inside over(): load before the pass begins, and it will continue where it stopped"
            )
        self._position.load_state_dict(state["position"])
        self._restore_counters(state)
        if self.on_spike is not None:
            self.on_spike.load_state_dict(state.get("rewind", {"losses": [], "history": []}))
        self._replicas.replay(state.get("arrivals", []))
        window = state["window"]
        if window["count"]:
            self._window.count = window["count"]
            self._window.size = max(self.accumulate, window["count"] + 1)
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
