"""FL607: training under detect_anomaly."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL607",
    claim="Anomaly mode records a stack trace for every forward operation and makes a small network more than twice as slow; it "
    "raises at a NaN in the backward pass, and overlooks infinities and a NaN in the forward pass.",
)
def anomaly_mode_left_on() -> Measured:
    wrong, right = _train(anomaly=True), _train(anomaly=False)
    slower = wrong.seconds / right.seconds
    nan_gradient = _raises(lambda x: (x * 0).sqrt())  # 0 times infinity
    infinite_gradient = _raises(lambda x: (x - 1).sqrt())  # x is 1: the slope is infinite, not NaN
    nan_forward = _raises(lambda x: x * float("nan"), backward=False)
    return Measured(
        sides={
            "wrong": {
                "graph nodes with a stack trace": wrong.traces,
                "milliseconds an update": 1000 * wrong.seconds,
                "raises at a NaN gradient": nan_gradient,
                "raises at an infinite gradient": infinite_gradient,
                "raises at a NaN in the forward pass": nan_forward,
            },
            "right": {
                "graph nodes with a stack trace": right.traces,
                "milliseconds an update": 1000 * right.seconds,
            },
        },
        conclusion=f"under detect_anomaly {wrong.traces} of {wrong.nodes} graph nodes carry a stack trace (without: {right.traces}) and an "
        f"update of a small network takes more than twice as long; an infinite gradient passes unnoticed",
        holds={
            "every operation records a stack trace": wrong.traces == wrong.nodes > 0,
            "none does without it": right.traces == 0,
            "a small network takes more than twice as long": slower > 2,
            "a NaN in the backward pass raises": nan_gradient,
            "an infinite gradient does not": not infinite_gradient,
            "a NaN in the forward pass does not": not nan_forward,
        },
    )


class _train:
    """The fastest of 40 updates, and how many nodes of the last graph carry a trace."""

    def __init__(self, *, anomaly: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(16, 32)
        self.seconds = float("inf")
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(anomaly):
            for _ in range(40):
                start = time.process_time()  # other programs do not count
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                self.seconds = min(self.seconds, time.process_time() - start)
        self.nodes = self.traces = 0
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and "AccumulateGrad" not in node.name():
                self.nodes += 1
                self.traces += "traceback_" in node.metadata
                waiting += [parent for parent, _ in node.next_functions]


def _raises(function: Callable[[Tensor], Tensor], *, backward: bool = True) -> bool:
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        try:
            y = function(x)
            if backward:
                y.sum().backward()
        except RuntimeError:
            return True
    return False
