"""Precision: which autocast the forward pass runs in, and the loss scale of float16."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState

from fallline.errors import EngineError

__all__ = ["Precision", "PrecisionName"]

PrecisionName = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast for the forward pass (never for backward), and a GradScaler when the dtype is float16.

    The scaler is torch's own, so its state, its growth and what watches it stay the same. Only its `unscale_` is not
    used: the loss scale is one factor of the one scalar that gradients are multiplied with anyway.
    """

    def __init__(
        self,
        name: PrecisionName,
        device: torch.device,
        parameters: Iterable[Tensor],
        scaler: GradScaler | None = None,
    ) -> None:
        if name not in _DTYPES:
            raise EngineError(f'precision={name!r} is not known: use "fp32", "bf16" or "fp16"')
        if scaler is not None and name != "fp16":
            raise EngineError(
                f'a scaler with precision="{name}": only float16 needs its loss scaled; leave the scaler out'
            )
        if name == "fp16" and any(p.dtype is torch.float16 for p in parameters):
            raise EngineError(
                "the model's own parameters are float16 (model.half()?), which no loss scale can train well: "
                'keep them float32, precision="fp16" casts where it is safe'
            )
        self.name = name
        dtype = _DTYPES[name]
        self.autocast = None if dtype is None else torch.autocast(device.type, dtype=dtype)
        self.scaler = scaler
        if name == "fp16" and scaler is None:
            self.scaler = GradScaler(device.type)
        if self.scaler is not None and not self.scaler.is_enabled():
            self.scaler = None
        # A loss that sums over n tokens has gradients n times those of the mean and would overflow float16 at the usual loss
        # scale. It is divided by one power of two near n, the same for the whole run and every rank, and so exactly.
        self.reference = 1.0
        self.has_reference = False
        self._one: Tensor | None = None

    def set_reference(self, weight: float) -> None:
        if weight == 0:  # every token is masked: the next micro-batch will say
            return
        self.reference = 2.0 ** round(math.log2(weight))
        self.has_reference = True

    def scaled(self, loss: Tensor) -> Tensor:
        if self.scaler is None:
            return loss
        if self.reference != 1.0:
            # In float32: a half loss would overflow on the way back at the usual scale
            loss = loss.float() / self.reference
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def factor(self, factor: float | Tensor, device: torch.device) -> float | Tensor:
        """The factor that also takes the loss scale out again. On a device it stays there."""
        if self.scaler is None:
            return factor
        scale = self.scale_now(device)
        if device.type == "cpu":
            return factor * (self.reference / float(scale))
        return (factor * (self.reference / scale)).float()

    def scale_now(self, device: torch.device) -> Tensor:
        """The loss scale as a tensor, by the only public way that does not wait for the device."""
        assert self.scaler is not None
        if self._one is None:
            self._one = torch.ones((), dtype=torch.float64, device=device)
        scale: Tensor = self.scaler.scale(self._one)
        return scale

    def record(self, optimizers: Iterable[torch.optim.Optimizer], found_inf: Tensor) -> None:
        """Tell the scaler what `unscale_` would have told it, without another pass over the gradients."""
        assert self.scaler is not None
        for optimizer in optimizers:
            state = self.scaler._per_optimizer_states[id(optimizer)]
            state["found_inf_per_device"] = {found_inf.device: found_inf}
            state["stage"] = OptState.UNSCALED

    def state_dict(self) -> dict[str, Any]:
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {"scaler": scaler, "reference": self.reference if self.has_reference else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state["scaler"] is None) != (self.scaler is None):
            saved, here = ("without", "with") if state["scaler"] is None else ("with", "without")
            raise EngineError(
                f'the state was saved {saved} loss scaling, and precision="{self.name}" is {here}: use the same precision'
            )
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.reference = state["reference"] or 1.0
        self.has_reference = state["reference"] is not None
