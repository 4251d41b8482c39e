"""What depth does to gradients: sigmoids, batch norm, residual blocks, recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import gradient_along_depth
from fallline.proof.experiments.modules.initialisation import he, tower, xavier

WIDTH = 64


@experiment(
    "vanishing-is-early-layers",
    claim="In a deep sigmoid network the gradients of the first layers vanish, those of the last do not.",
    taught="Example of vanishing gradients: layer 1 has 1.2e-2, layer 20 has 5.7e-9.",
)
def vanishing_is_early_layers() -> Measured:
    norms = gradient_along_depth(tower(nn.Sigmoid, depth=20))
    return Measured(
        sides={
            "first layer": {"gradient norm": norms[0]},
            "middle": {"gradient norm": norms[9]},
            "last layer": {"gradient norm": norms[-1]},
        },
        conclusion=f"20 sigmoid layers: the first layer's gradient is {norms[0]:.0e}, the last one's {norms[-1]:.0e}",
        holds={
            "the first layer has less than 1e-12 of the last one's": norms[0] < 1e-12 * norms[-1],
            "the norm grows from layer to layer": all(a < b for a, b in pairwise(norms)),
        },
        curves={"sigmoid, 20 layers": norms},
        axes=("layer", "gradient norm"),
    )


@experiment(
    "look-per-layer",
    claim="A total norm hides vanishing: it looks healthy while most layers get next to nothing.",
    taught="Vanishing gradients show as a total norm under 1e-6.",
)
def look_per_layer() -> Measured:
    dead = gradient_along_depth(tower(nn.Sigmoid, depth=20))
    alive = gradient_along_depth(tower(nn.Tanh, depth=20, init=xavier))
    total, healthy = math.hypot(*dead), math.hypot(*alive)
    starved, starved_alive = (sum(n < 1e-8 for n in norms) for norms in (dead, alive))
    return Measured(
        sides={
            "20 sigmoid layers": {"total norm": total, "layers with a norm under 1e-8": starved},
            "20 tanh layers, Xavier": {
                "total norm": healthy,
                "layers with a norm under 1e-8": starved_alive,
            },
        },
        conclusion=f"the total norm is {total:.2f}, while {starved} of {len(dead)} layers have a norm under 1e-8; a healthy network's is {healthy:.2f}",
        holds={
            "the total norm is about that of a healthy network": 0.1 < total / healthy < 10,
            "at least half of the layers get nothing": starved >= len(dead) / 2,
            "in the healthy network none": starved_alive == 0,
        },
        curves={"sigmoid": dead, "tanh, Xavier": alive},
        axes=("layer", "gradient norm"),
    )


@experiment(
    "match-full-layer-names",
    claim="Picking early layers by `'layer1' in name` also takes layer10 to layer19 and calls a dead network healthy.",
    taught="The mean norm of layer19 and layer20 over that of `'layer0' in name or 'layer1' in name` finds vanishing.",
)
def match_full_layer_names() -> Measured:
    norms = gradient_along_depth(tower(nn.Sigmoid, depth=21))
    named = {f"layer{i}": norm for i, norm in enumerate(norms)}
    late = (named["layer19"] + named["layer20"]) / 2
    matched = [norm for name, norm in named.items() if "layer0" in name or "layer1" in name]
    by_substring = late / (sum(matched) / len(matched))
    by_name = late / ((named["layer0"] + named["layer1"]) / 2)
    return Measured(
        sides={
            "substring": {"early layers matched": len(matched), "late / early": by_substring},
            "full name": {"early layers matched": 2, "late / early": by_name},
        },
        conclusion=f"by substring late / early is {by_substring:.0f}, under the limit of 1000; in truth it is {by_name:.0e}",
        holds={
            "the substring matches twelve layers": len(matched) == 12,
            "by substring all looks well": by_substring < 1000,
            "and ten orders of magnitude are hidden": by_name > 1e10 * by_substring,
        },
    )


@experiment(
    "batchnorm-alone-explodes",
    claim="Batch norm without residuals makes gradients explode towards the input, the more the deeper the network.",
    taught="Batch norm stabilises gradients in very deep networks (more than 20 layers).",
)
def batchnorm_alone_explodes() -> Measured:
    depths = (20, 50, 100)
    ratios = {depth: _early_over_late(_normed(depth)) for depth in depths}
    residual = {depth: _early_over_late(_normed(depth, residual=True)) for depth in depths}
    without = {depth: _early_over_late(tower(nn.ReLU, depth=depth, init=he)) for depth in depths}
    return Measured(
        sides={
            "plain, with batch norm": {
                f"first / last gradient, {d} layers": r for d, r in ratios.items()
            },
            "residual, with batch norm": {
                f"first / last gradient, {d} layers": r for d, r in residual.items()
            },
            "plain, without batch norm": {
                f"first / last gradient, {d} layers": r for d, r in without.items()
            },
        },
        conclusion=(
            f"with batch norm alone the first layer's gradient is {ratios[20]:.0f} times the last one's at 20 layers "
            f"and {ratios[100]:.0e} times at 100; with residuals {residual[100]:.0f} times, and without batch norm it does not explode"
        ),
        holds={
            "20 layers: at least 5 times": ratios[20] > 5,
            "50 layers: at least 500 times": ratios[50] > 500,
            "100 layers: at least a million times": ratios[100] > 1e6,
            "with residuals under 100 times": max(residual.values()) < 100,
            "without batch norm under 10 times": max(without.values()) < 10,
        },
        curves={
            "batch norm": gradient_along_depth(_normed(100)),
            "batch norm and residuals": gradient_along_depth(_normed(100, residual=True)),
        },
        axes=("layer", "gradient norm"),
    )


@experiment(
    "residuals-can-explode",
    claim="Residual blocks with He initialisation explode with depth; a zero-initialised last layer keeps them tame.",
    taught="Residual connections prevent exploding gradients, so many blocks can be stacked.",
)
def residuals_can_explode() -> Measured:
    def total(blocks: int, init: Callable[[_Block], None] | None) -> float:
        norms = gradient_along_depth(_residual(blocks, init))
        return math.hypot(*norms)

    depths = (3, 10, 20, 50)
    with_he = [total(blocks, _he_block) for blocks in depths]
    with_zero = [total(blocks, _zero_last) for blocks in depths]
    endless = total(100, _he_block)
    return Measured(
        sides={
            "He initialisation": {
                f"total gradient norm, {d} blocks": n for d, n in zip(depths, with_he, strict=True)
            },
            "last layer starts at zero": {
                f"total gradient norm, {d} blocks": n
                for d, n in zip(depths, with_zero, strict=True)
            },
        },
        conclusion=(
            f"with He initialisation the total gradient norm grows from {with_he[0]:.0f} at 3 blocks to {with_he[-1]:.0e} "
            f"at 50 and overflows at 100; with a zero-initialised last layer it is {with_zero[-1]:.1f} at 50"
        ),
        holds={
            "He: 50 blocks explode": with_he[-1] > 1e9,
            "He: 100 blocks overflow": not endless < float("inf"),
            "a zero-initialised last layer does not": with_zero[-1] < 100,
        },
        curves={"He": with_he, "zero-initialised": with_zero},
        axes=("blocks", "gradient norm"),
        positions=depths,
    )


@experiment(
    "residuals-prevent-vanishing",
    claim="With residual connections the first layers of a deep network get gradients as large as the last ones.",
)
def residuals_prevent_vanishing() -> Measured:
    with_skip = gradient_along_depth(_residual(50).double())
    without = gradient_along_depth(_residual(50, skip=False).double())
    return Measured(
        sides={
            "50 blocks with residuals": {"first / last gradient": with_skip[0] / with_skip[-1]},
            "50 blocks without": {"first / last gradient": without[0] / without[-1]},
        },
        conclusion=(
            f"50 blocks: the first layer's gradient is {with_skip[0] / with_skip[-1]:.1f} times the last one's with residuals, "
            f"{without[0] / without[-1]:.0e} times without"
        ),
        holds={
            "with residuals within a factor of 100": 0.01 < with_skip[0] / with_skip[-1] < 100,
            "without them under 1e-8": without[0] < 1e-8 * without[-1],
        },
        curves={"residuals": with_skip, "none": without},
        axes=("layer", "gradient norm"),
    )


@experiment(
    "recurrence-multiplies",
    claim="Back through time a gradient is multiplied once for each step, in the long run by the spectral radius of the recurrence.",
)
def recurrence_multiplies() -> Measured:
    radii = (0.9, 1.0, 1.1)
    # Each with a matrix of its own: with one matrix the three would be multiples of each other.
    through_time = {r: _through_time(r, steps=100, seed=i) for i, r in enumerate(radii)}
    ends = {radius: curve[-1] for radius, curve in through_time.items()}
    rates = {radius: (curve[-1] / curve[49]) ** (1 / 50) for radius, curve in through_time.items()}
    return Measured(
        sides={
            f"spectral radius {radius}": {
                "gradient after 100 steps": end,
                "factor a step, over the last 50": rates[radius],
            }
            for radius, end in ends.items()
        },
        conclusion=(
            f"after 100 steps a gradient of norm 1 is {ends[0.9]:.0e} at radius 0.9, {ends[1.0]:.1f} at 1.0 and {ends[1.1]:.0e} at 1.1; "
            f"a step multiplies it by {', '.join(f'{rate:.2f}' for rate in rates.values())}"
        ),
        holds={
            "0.9 vanishes": ends[0.9] < 1e-2,
            "1.0 stays": 0.01 < ends[1.0] < 100,
            "1.1 explodes": ends[1.1] > 1e2,
            "each step multiplies by the radius, to 3 percent": all(
                abs(rate / radius - 1) < 0.03 for radius, rate in rates.items()
            ),
        },
        curves={f"radius {radius}": curve for radius, curve in through_time.items()},
        axes=("time steps back", "gradient norm"),
    )


def _through_time(radius: float, steps: int, seed: int) -> list[float]:
    """Norms of the gradient of a linear recurrence's last state with respect to earlier and earlier states."""
    torch.manual_seed(seed)
    matrix = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    matrix *= radius / torch.linalg.eigvals(matrix).abs().max()
    state = torch.randn(WIDTH, dtype=torch.float64, requires_grad=True)
    states: list[Tensor] = [state]
    for _ in range(steps):
        states.append(matrix @ states[-1])
    end = torch.randn(WIDTH, dtype=torch.float64)
    grads = torch.autograd.grad(states[-1] @ (end / end.norm()), states)
    return [float(g.norm()) for g in reversed(grads)][1:]


class _Block(nn.Module):
    """The textbook residual block: two layers and a skip connection."""

    def __init__(self, skip: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(x)))
        return torch.relu(x + change) if self.skip else torch.relu(change)


def _residual(
    blocks: int, init: Callable[[_Block], None] | None = None, *, skip: bool = True
) -> nn.Module:
    torch.manual_seed(0)
    stack = [_Block(skip) for _ in range(blocks)]
    for block in stack:
        if init is not None:
            init(block)
    return nn.Sequential(*stack)


def _he_block(block: _Block) -> None:
    he(block.first)
    he(block.second)


def _zero_last(block: _Block) -> None:
    he(block.first)
    nn.init.zeros_(block.second.weight)
    nn.init.zeros_(block.second.bias)


class _NormedLayer(nn.Module):
    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        he(self.linear)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        change = torch.relu(self.norm(self.linear(x)))
        return x + change if self.residual else change


def _normed(depth: int, *, residual: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(_NormedLayer(residual) for _ in range(depth)))


def _early_over_late(net: nn.Module) -> float:
    norms = gradient_along_depth(net)
    return norms[0] / norms[-1]
