"""Modes: train and eval, checkpointed blocks, anomaly detection, autocast that is switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published

__all__ = [
    "ANOMALY",
    "AUTOCAST_OFF",
    "CHECKPOINT",
    "TRAIN",
    "AnomalyCall",
    "AutocastOffCall",
    "CheckpointCall",
    "TrainCall",
]


@dataclass(slots=True)
class TrainCall(Call):
    """`model.train(mode)`, `model.eval()`: of the whole, not of its parts."""

    module: nn.Module
    mode: bool


@dataclass(slots=True)
class CheckpointCall(Call):
    """`torch.utils.checkpoint.checkpoint(function, ...)`. `options`: what was given by name."""

    function: Any
    options: dict[str, Any]


@dataclass(slots=True)
class AnomalyCall(Call):
    """Anomaly detection is switched on."""


@dataclass(slots=True)
class AutocastOffCall(Call):
    """`with autocast(enabled=False)` inside of an autocast that is on: `before` where it is entered, `after` where it is left."""

    context: Any


class _Nested:
    """`train` calls itself for every part."""

    inside = False


def _patch_train(patches: Patches) -> None:
    patches.patch(nn.Module, "train", _train)


def _patch_checkpoint(patches: Patches) -> None:
    patches.patch(torch.utils.checkpoint, "checkpoint", _checkpoint, imported=True)


def _patch_anomaly(patches: Patches) -> None:
    anomaly = torch.autograd.anomaly_mode
    patches.patch(anomaly.detect_anomaly, "__enter__", _detect_anomaly)
    patches.patch(anomaly.set_detect_anomaly, "__init__", _set_detect_anomaly)


def _patch_autocast(patches: Patches) -> None:
    autocast = torch.amp.autocast_mode.autocast
    patches.patch(autocast, "__enter__", _enter_autocast)
    patches.patch(autocast, "__exit__", _exit_autocast)


def _train(original: Wrapped) -> Wrapped:
    def train(self: nn.Module, mode: bool = True) -> Any:
        if _Nested.inside or not published():
            return original(self, mode)
        _Nested.inside = True
        try:
            return TRAIN.around(TrainCall(caller(), self, mode), original, self, mode)
        finally:
            _Nested.inside = False

    return train


def _checkpoint(original: Wrapped) -> Wrapped:
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not published():
            return original(function, *args, **kwargs)
        call = CheckpointCall(caller(), function, kwargs)
        return CHECKPOINT.around(call, original, function, *args, **kwargs)

    return checkpoint


def _detect_anomaly(original: Wrapped) -> Wrapped:
    def __enter__(self: Any) -> Any:
        if published():
            return ANOMALY.around(AnomalyCall(caller()), original, self)
        return original(self)

    return __enter__


def _set_detect_anomaly(original: Wrapped) -> Wrapped:
    def __init__(self: Any, mode: bool, *args: Any, **kwargs: Any) -> None:
        if mode and published():
            ANOMALY.around(AnomalyCall(caller()), original, self, mode, *args, **kwargs)
        else:
            original(self, mode, *args, **kwargs)

    return __init__


def _enter_autocast(original: Wrapped) -> Wrapped:
    def __enter__(self: Any) -> Any:
        if not self._enabled and torch.is_autocast_enabled(self.device) and published():
            call = AutocastOffCall(caller(), self)
            for handler in AUTOCAST_OFF.before:
                handler(call)
        return original(self)

    return __enter__


def _exit_autocast(original: Wrapped) -> Wrapped:
    def __exit__(self: Any, *args: Any) -> Any:
        if not self._enabled and published():
            call = AutocastOffCall(caller(), self)
            for handler in AUTOCAST_OFF.after:
                handler(call)
        return original(self, *args)

    return __exit__


TRAIN = Topic(TrainCall, Tap(_patch_train))
CHECKPOINT = Topic(CheckpointCall, Tap(_patch_checkpoint))
ANOMALY = Topic(AnomalyCall, Tap(_patch_anomaly))
AUTOCAST_OFF = Topic(AutocastOffCall, Tap(_patch_autocast))
