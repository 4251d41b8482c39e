"""Initialisation: what keeps the scale of gradients along twenty layers, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of, gradient_along_depth

Init = Callable[[nn.Linear], object]
DEPTH = 20


def he(layer: nn.Linear) -> None:
    """He's normal initialisation, for ReLU."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)


def xavier(layer: nn.Linear) -> None:
    """Xavier's normal initialisation, for tanh."""
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)


def tower(
    activation: Callable[[], nn.Module], *, depth: int, init: Init | None = None
) -> nn.Module:
    """`depth` layers of 64, each a Linear and an activation; PyTorch's own initialisation unless another is given."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(64, 64)
        if init is not None:
            init(linear)
        layers += [linear, activation()]
    return nn.Sequential(*layers)


@experiment(
    "initialisation-before-activation",
    claim="Initialisation decides, not the activation: PyTorch's default vanishes with ReLU, GELU and tanh alike.",
    taught="Replace the activation first (highest impact), then look at the initialisation; avoid tanh.",
)
def initialisation_before_activation() -> Measured:
    default = {
        "ReLU": _early_over_late(nn.ReLU),
        "tanh": _early_over_late(nn.Tanh),
        "GELU": _early_over_late(nn.GELU),
    }
    chosen = {
        "ReLU": _early_over_late(nn.ReLU, he),
        "tanh": _early_over_late(nn.Tanh, xavier),
        "GELU": _early_over_late(nn.GELU, he),
    }
    return Measured(
        sides={
            "PyTorch's default": {f"{n}, first / last gradient": r for n, r in default.items()},
            "He, for tanh Xavier": {f"{n}, first / last gradient": r for n, r in chosen.items()},
        },
        conclusion=(
            f"{DEPTH} layers, first over last gradient: default {default['ReLU']:.0e} (ReLU), {default['GELU']:.0e} (GELU), "
            f"{default['tanh']:.0e} (tanh); {chosen['ReLU']:.1f} with ReLU and He, {chosen['tanh']:.1f} with tanh and Xavier"
        ),
        holds={
            "the default vanishes with every activation": max(default.values()) < 0.01,
            "GELU for ReLU does not help": default["GELU"] < 10 * default["ReLU"],
            "the right initialisation keeps the scale": 0.1 < chosen["ReLU"] < 10
            and 0.1 < chosen["tanh"] < 10,
            "and helps GELU a thousandfold": chosen["GELU"] > 1e3 * default["GELU"],
        },
        curves={
            "ReLU, default": _norms(nn.ReLU),
            "ReLU, He": _norms(nn.ReLU, he),
            "tanh, Xavier": _norms(nn.Tanh, xavier),
        },
        axes=("layer", "gradient norm"),
    )


@experiment(
    "uniform-init-is-fine",
    claim="He initialisation keeps the scale of gradients with uniform as with normal numbers.",
    taught="Uniform initialisation scales gradients improperly.",
)
def uniform_init_is_fine() -> Measured:
    normal, uniform = _early_over_late(nn.ReLU, he), _early_over_late(nn.ReLU, _he_uniform)
    default = _early_over_late(nn.ReLU)
    return Measured(
        sides={
            "He, normal": {"first / last gradient": normal},
            "He, uniform": {"first / last gradient": uniform},
            "default (uniform, but too narrow)": {"first / last gradient": default},
        },
        conclusion=f"first over last gradient of {DEPTH} layers: {uniform:.2f} with uniform, {normal:.2f} with normal numbers",
        holds={
            "both within a factor of ten of 1": 0.1 < normal < 10 and 0.1 < uniform < 10,
            "what vanishes is the width, not the shape": default < 1e-3 * uniform,
        },
    )


@experiment(
    "he-and-xavier-keep-scale",
    claim="He for ReLU and Xavier for tanh keep the gradient's scale over twenty layers; twice He's spread explodes.",
)
def he_and_xavier_keep_scale() -> Measured:
    norms = {
        "He, ReLU": _norms(nn.ReLU, he),
        "Xavier, tanh": _norms(nn.Tanh, xavier),
        "twice He's spread, ReLU": _norms(nn.ReLU, _twice_he),
    }
    kept = {name: found[0] / found[-1] for name, found in norms.items()}
    relu, tanh = kept["He, ReLU"], kept["Xavier, tanh"]
    growth = norms["twice He's spread, ReLU"][0] / norms["He, ReLU"][0]
    return Measured(
        sides={
            name: {"first layer's gradient norm": found[0], "first / last gradient": kept[name]}
            for name, found in norms.items()
        },
        conclusion=(
            f"{DEPTH} layers, first over last gradient: {relu:.2f} with He and ReLU, {tanh:.2f} with Xavier and tanh; "
            f"twice He's spread makes the gradients {growth:.0e} times larger"
        ),
        holds={
            "He and Xavier stay within a factor of ten": 0.1 < relu < 10 and 0.1 < tanh < 10,
            "twice the spread is at least 1e8 times larger": growth > 1e8,
        },
        curves=norms,
        axes=("layer", "gradient norm"),
    )


@experiment(
    "init-and-missing-bias",
    claim="`nn.init.zeros_(m.bias)` without a check fails on bias=False layers, the usual Conv before a batch norm.",
    taught="`nn.init.zeros_(m.bias)` initialises every Linear and Conv layer.",
)
def init_and_missing_bias() -> Measured:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))

    def unguarded(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def guarded(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)

    wrong, right = error_of(lambda: net.apply(unguarded)), error_of(lambda: net.apply(guarded))
    return Measured(
        sides={"no check": {"raises": wrong}, "`bias is not None`": {"raises": right}},
        conclusion=f"on Conv2d(bias=False) the unguarded initialiser raises {wrong}, the guarded one raises {right}",
        holds={"unguarded fails": wrong == "AttributeError", "guarded passes": right == "none"},
    )


@experiment(
    "saturation",
    claim="Sigmoid and tanh saturate on both sides, GELU on the negative one, where from -6 on it is as dead as ReLU.",
    taught="Sigmoid and tanh saturate; GELU does not.",
)
def saturation() -> Measured:
    activations: dict[str, Callable[[Tensor], Tensor]]
    activations = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "GELU": nn.functional.gelu,
        "ReLU": torch.relu,
    }
    points = torch.linspace(-8, 8, 65, dtype=torch.float64).requires_grad_()
    slopes = {
        name: torch.autograd.grad(f(points).sum(), points)[0] for name, f in activations.items()
    }
    at = {x: int((points - x).abs().argmin()) for x in (-6.0, 0.0, 6.0)}
    return Measured(
        sides={
            name: {f"slope at {x:g}": float(slope[i]) for x, i in at.items()}
            for name, slope in slopes.items()
        },
        conclusion=(
            f"slopes at -6 / 0 / 6: sigmoid {_three(slopes['sigmoid'], at)}, tanh {_three(slopes['tanh'], at)}, "
            f"GELU {_three(slopes['GELU'], at)}, ReLU {_three(slopes['ReLU'], at)}"
        ),
        holds={
            "sigmoid's slope is at most 1/4": float(slopes["sigmoid"].max()) <= 0.25,
            "sigmoid at -6 and 6 is under 0.003": max(_sides(slopes["sigmoid"], at)) < 0.003,
            "tanh at -6 and 6 is under 1e-4": max(_sides(slopes["tanh"], at)) < 1e-4,
            "GELU is ReLU at -6 and at 6, to 1e-6": all(
                abs(gelu - relu) < 1e-6
                for gelu, relu in zip(
                    _sides(slopes["GELU"], at), _sides(slopes["ReLU"], at), strict=True
                )
            ),
            "ReLU is 0 and 1 there": _sides(slopes["ReLU"], at) == (0, 1),
        },
        curves={name: slope.tolist() for name, slope in slopes.items()},
        axes=("input", "slope"),
        positions=points.tolist(),
    )


def _sides(slope: Tensor, at: dict[float, int]) -> tuple[float, float]:
    """The slopes far out on the negative and on the positive side."""
    return float(slope[at[-6.0]]), float(slope[at[6.0]])


def _three(slope: Tensor, at: dict[float, int]) -> str:
    return " / ".join(f"{abs(float(slope[i])):.2g}" for i in at.values())


def _he_uniform(layer: nn.Linear) -> None:
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)


def _twice_he(layer: nn.Linear) -> None:
    he(layer)
    with torch.no_grad():
        layer.weight *= 2


def _norms(activation: Callable[[], nn.Module], init: Init | None = None) -> list[float]:
    return gradient_along_depth(tower(activation, depth=DEPTH, init=init))


def _early_over_late(activation: Callable[[], nn.Module], init: Init | None = None) -> float:
    norms = _norms(activation, init)
    return norms[0] / norms[-1]
