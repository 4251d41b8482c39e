"""FL806: a deep stack of sigmoid or tanh layers, and what is left of the gradient at its first layer."""

from __future__ import annotations

from copy import deepcopy
from math import log10

from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import gradient_along_depth
from fallline.proof.experiments.modules.initialisation import he, tower, xavier

DEPTH = 20
_RATIO = "first layer's gradient over the last one's"


@experiment(
    "FL806",
    claim="With PyTorch's default initialisation the first of 5 sigmoid layers gets less than a thousandth of the last one's "
    "gradient, and so does the first of 20 tanh layers; a fitting initialisation, residuals, BatchNorm, or LayerNorm after the "
    "activation keep it. LayerNorm before a sigmoid does not.",
)
def saturating_deep() -> Measured:
    sigmoids = _shrinks(tower(nn.Sigmoid, depth=5))
    tanhs = _shrinks(tower(nn.Tanh, depth=DEPTH))
    right = _shrinks(tower(nn.Tanh, depth=DEPTH, init=xavier))
    kept = {
        "ReLU with He": _shrinks(tower(nn.ReLU, depth=DEPTH, init=he)),
        "BatchNorm before sigmoid": _shrinks(_normed(nn.BatchNorm1d(64), nn.Sigmoid())),
        "LayerNorm after sigmoid": _shrinks(_normed(nn.Sigmoid(), nn.LayerNorm(64))),
        "residual tanh": _shrinks(_residual()),
    }
    norm_first = _shrinks(_normed(nn.LayerNorm(64), nn.Sigmoid()))
    return Measured(
        sides={
            "wrong": {_RATIO: tanhs},
            "right": {_RATIO: right},
            "5 sigmoid layers": {_RATIO: sigmoids},
            "LayerNorm before sigmoid": {_RATIO: norm_first},
        }
        | {name: {_RATIO: ratio} for name, ratio in kept.items()},
        conclusion=f"the first layer's gradient is 1/{round(1 / sigmoids, -3):,.0f} of the last one's with 5 sigmoid layers and "
        f"1/{round(1 / tanhs, -3):,.0f} with {DEPTH} tanh layers, {right:.1f} of it with Xavier; "
        + ", ".join(f"{ratio:.1f} with {name}" for name, ratio in kept.items()),
        holds={
            "5 sigmoid layers lose more than a thousandfold": sigmoids < 1e-3,
            "20 tanh layers too": tanhs < 1e-3,
            "LayerNorm before a sigmoid does not help": norm_first < 1e-3,
            "every remedy keeps more than a tenth": min(right, *kept.values()) > 0.1,
        },
        curves={
            "wrong": [log10(norm) for norm in gradient_along_depth(tower(nn.Tanh, depth=DEPTH))],
            "right": [
                log10(norm)
                for norm in gradient_along_depth(tower(nn.Tanh, depth=DEPTH, init=xavier))
            ],
        },
        axes=("layer", "gradient norm, powers of ten"),
    )


def _shrinks(model: nn.Module) -> float:
    norms = gradient_along_depth(model)
    return norms[0] / norms[-1]


def _normed(*parts: nn.Module) -> nn.Module:
    """Twenty layers, each a Linear and a copy of these parts."""
    return tower(lambda: deepcopy(nn.Sequential(*parts)), depth=DEPTH)


def _residual() -> nn.Module:
    return nn.Sequential(*(_Block(tower(nn.Tanh, depth=1)) for _ in range(DEPTH)))


class _Block(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.layer(x)
        return output
