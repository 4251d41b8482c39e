"""FL803: model.forward(x) instead of model(x)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from fallline.proof.experiment import Measured, experiment

BATCHES = 20
Call = Callable[[nn.Module, Tensor], Tensor]


@experiment(
    "FL803",
    claim="model.forward(x) runs no hook: what watches activations sees nothing, and a pruned layer, whose weight is made in a "
    "hook, computes with an old weight. model(x) runs them.",
)
def forward_called() -> Measured:
    wrong_seen, right_seen = _activations_seen(_forward), _activations_seen(_called)
    wrong_change, right_change = _output_follows_weight(_forward), _output_follows_weight(_called)
    return Measured(
        sides={
            "wrong": {
                "batches that a forward hook saw": wrong_seen,
                "output changes when a pruned layer's weight is doubled": wrong_change,
            },
            "right": {
                "batches that a forward hook saw": right_seen,
                "output changes when a pruned layer's weight is doubled": right_change,
            },
        },
        conclusion=f"a forward hook sees {wrong_seen} of {BATCHES} batches through model.forward(x) and {right_seen} through model(x); a pruned layer "
        f"{'follows' if wrong_change else 'does not follow'} its weight through forward and {'does' if right_change else 'does not'} through the call",
        holds={
            "forward runs no hook": wrong_seen == 0,
            "the call runs them all": right_seen == BATCHES,
            "a pruned layer keeps an old weight under forward": not wrong_change,
            "and follows its weight when it is called": right_change,
        },
    )


def _forward(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model.forward(x)
    return output


def _called(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    return output


def _activations_seen(call: Call) -> int:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    for x in torch.randn(BATCHES, 8, 4):
        call(model, x)
    return len(seen)


@torch.no_grad()
def _output_follows_weight(call: Call) -> bool:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.randn(8, 4)
    prune.l1_unstructured(model, "weight", amount=0.5)
    before = call(model, x)
    model.get_parameter("weight_orig").mul_(2)
    return not torch.equal(call(model, x), before)
