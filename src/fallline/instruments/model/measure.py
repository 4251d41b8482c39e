"""`fallline.instruments.measure_model`: a model's registration, units, initialisation and gradient flow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.micro_batch import MicroBatch
from fallline.instruments.model.batch import generated_batch
from fallline.instruments.model.flow import Flow, flow_of
from fallline.instruments.model.registered import shared_parameters, unregistered
from fallline.instruments.model.report import UNEVEN, ModelReport
from fallline.instruments.untouched import World, leaves_of, loss_of, untouched

__all__ = ["measure_micro", "measure_model"]


def measure_model(model: nn.Module, *inputs: Any, **named: Any) -> ModelReport:
    """Look at a model and run it once, forward and backward, on a batch: the one given, or one made from its first layer's shape."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"measure_model needs a torch.nn.Module, not {type(model).__name__}")
    report = _looked_at(model)
    with Progress("model", total=3) as progress:
        try:
            world = World()
            progress.advance(0, "a batch")
            report.batch = "given"
            if not inputs and not named:
                inputs, report.batch = generated_batch(model, world)
            progress.advance(1, "forward and backward")
            report.flow = flow_of(model, lambda: model(*inputs, **named), world)
            progress.advance(2, "another initialisation")
            if _is_uneven(report.flow):
                report.tried = _initialised(model, inputs, named, report.flow)
        except KeyboardInterrupt:
            report.partial = True
    return report


def measure_micro(micro: MicroBatch, update: int) -> tuple[ModelReport, nn.Module]:
    """The model that the loss of a script's micro-batch trains, with that batch and loss."""
    model = _trained(micro)
    report = _looked_at(model)
    report.batch = f"of update {update}"
    report.flow = flow_of(model, micro, World())
    return report, model


def _trained(micro: MicroBatch) -> nn.Module:
    """Of the models that are called, the one that this loss trains most: a GAN's discriminator, not its generator."""
    with untouched(World(), swap_buffers=True):
        loss, _ = loss_of(micro)
        reached = {id(p) for p in leaves_of(loss)} if loss is not None else set()
    return max(
        micro.models,
        key=lambda m: (
            sum(p.numel() for p in m.parameters() if id(p) in reached),
            sum(p.numel() for p in m.parameters()),
        ),
    )


def _looked_at(model: nn.Module) -> ModelReport:
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return ModelReport(
        type(model).__name__,
        sum(n for n, _ in counts),
        sum(n for n, trained in counts if trained),
        unregistered(model),
        shared_parameters(model),
        [n for n, p in model.named_parameters() if not p.requires_grad],
    )


def _is_uneven(flow: Flow) -> bool:
    ratio = flow.early_to_late
    return ratio is not None and not 1 / UNEVEN <= ratio <= UNEVEN


def _initialised(model: nn.Module, inputs: Any, named: Any, flow: Flow) -> dict[str, Any]:
    """The usual initialisation for the activations that were seen, on a copy of the model."""
    seen = {a.op for a in flow.activations}
    squashed = bool(seen & {"tanh", "sigmoid"}) and "relu" not in seen
    how = "Xavier initialisation" if squashed else "He initialisation"
    try:
        other = copy.deepcopy(model)
    except Exception:  # a user's module may hold what cannot be copied
        return {}
    source: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for module in other.modules():
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                generator = source.setdefault(
                    module.weight.device, torch.Generator(module.weight.device).manual_seed(0)
                )
                _initialise(squashed)(module.weight, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
    ratio = flow_of(other, lambda: other(*inputs, **named), World()).early_to_late
    if ratio is None:
        return {}
    return {"how": how, "early_to_late": ratio, "helps": 1 / UNEVEN <= ratio <= UNEVEN}


def _initialise(squashed: bool) -> Callable[..., Any]:
    if squashed:
        return nn.init.xavier_normal_
    return lambda weight, generator: nn.init.kaiming_normal_(
        weight, nonlinearity="relu", generator=generator
    )
