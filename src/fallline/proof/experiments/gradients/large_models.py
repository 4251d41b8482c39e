"""What keeps large models from spiking: a shorter memory of Adam's, warm-up, z-loss, normalised queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from fallline.proof.experiment import Measured, experiment

LR = 1e-3


@experiment(
    "beta2-remembers-small-gradients",
    claim="After gradients grow a hundredfold, Adam with beta2 = 0.999 takes steps many times its learning rate for dozens of updates; with 0.95 they are bounded within a few.",
    taught="Adam's step size does not depend on the size of the gradient.",
)
def beta2_remembers_small_gradients() -> Measured:
    slow, fast = (_steps_after_growth(beta2) for beta2 in (0.999, 0.95))
    return Measured(
        sides={
            "beta2 = 0.999": {"largest step, in learning rates": max(slow), "20 updates later": slow[20]},
            "beta2 = 0.95": {"largest step, in learning rates": max(fast), "20 updates later": fast[20]},
        },
        conclusion=f"20 updates after the growth a step is {slow[20]:.1f} learning rates with beta2 = 0.999 and {fast[20]:.1f} with 0.95 (largest: {max(slow):.1f} and {max(fast):.1f})",
        curves={"beta2 = 0.999": slow, "beta2 = 0.95": fast},
        axes=("updates after the growth", "step in learning rates"),
        holds={"0.999 overshoots for long": slow[20] > 3 * fast[20], "0.95 is back": fast[20] < 1.5},
    )  # fmt: skip


def _steps_after_growth(beta2: float) -> list[float]:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=LR, betas=(0.9, beta2))
    steps = []
    for update in range(1060):
        before = weight.item()
        weight.grad = torch.full((1,), 1.0 if update < 1000 else 100.0)
        optimizer.step()
        if update >= 1000:
            steps.append(abs(weight.item() - before) / LR)
    return steps


@experiment(
    "adams-first-steps-are-full-size",
    claim="Adam's first update moves every weight by the whole learning rate, whatever its gradient: only a warm-up makes the first steps small.",
)
def adams_first_steps_are_full_size() -> Measured:
    tiny, huge = (_first_step(gradient) for gradient in (1e-6, 1e6))
    return Measured(
        sides={
            "gradient 1e-6": {"first step, in learning rates": tiny},
            "gradient 1e6": {"first step, in learning rates": huge},
        },
        conclusion=f"the first step is {tiny:.2f} learning rates for a gradient of 1e-6 and {huge:.2f} for one of 1e6",
        holds={"full size for both": abs(tiny - 1) < 0.02 and abs(huge - 1) < 0.02},
    )


def _first_step(gradient: float) -> float:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=LR)
    weight.grad = torch.tensor([gradient])
    optimizer.step()
    return abs(weight.item()) / LR


@experiment(
    "z-loss-holds-the-logits",
    claim="Cross-entropy does not mind a shift common to all logits, so nothing holds it; z-loss, a small multiple of the squared logsumexp, pulls it back at the same loss.",
)
def z_loss_holds_the_logits() -> Measured:
    plain, held = _drift(0.0), _drift(1e-2)
    return Measured(
        sides={
            "cross-entropy": {"logsumexp after 300 updates": plain[0], "loss": plain[1]},
            "with z-loss": {"logsumexp after 300 updates": held[0], "loss": held[1]},
        },
        conclusion=f"logits that start 20 too high stay there without z-loss (logsumexp {plain[0]:.1f}) and come back with it ({held[0]:.1f}); the loss is {plain[1]:.3f} and {held[1]:.3f}",
        holds={
            "nothing pulls them back without it": plain[0] > 19,
            "z-loss does": abs(held[0]) < 5,
            "the loss is the same": abs(plain[1] - held[1]) < 0.02,
        },
    )


def _drift(weight: float) -> tuple[float, float]:
    torch.manual_seed(0)
    x, y = torch.randn(128, 8), torch.randint(10, (128,))
    layer = nn.Linear(8, 10)
    with torch.no_grad():
        layer.bias.add_(20)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(300):
        logits = layer(x)
        z = torch.logsumexp(logits, -1)
        optimizer.zero_grad()
        (cross_entropy(logits, y) + weight * z.square().mean()).backward()
        optimizer.step()
    logits = layer(x)
    return float(torch.logsumexp(logits, -1).mean()), float(cross_entropy(logits, y))


@experiment(
    "qk-norm-bounds-attention",
    claim="Attention logits grow with the square of the weights, until one key takes all; with normalised queries and keys they are bounded by the temperature, whatever the weights are.",
)
def qk_norm_bounds_attention() -> Measured:
    grown = {scale: _attention(scale, normed=False) for scale in (1.0, 10.0)}
    normed = {scale: _attention(scale, normed=True) for scale in (1.0, 10.0)}
    return Measured(
        sides={
            "plain": {"largest logit": grown[1.0][0], "with weights ten times larger": grown[10.0][0], "entropy then": grown[10.0][1]},
            "queries and keys normalised": {"largest logit": normed[1.0][0], "with weights ten times larger": normed[10.0][0], "entropy then": normed[10.0][1]},
        },
        conclusion=f"ten times larger weights raise the largest logit from {grown[1.0][0]:.1f} to {grown[10.0][0]:.0f} and the entropy falls to {grown[10.0][1]:.2f}; normalised it stays {normed[10.0][0]:.1f} with {normed[10.0][1]:.2f}",
        holds={
            "logits grow with the square": 90 < grown[10.0][0] / grown[1.0][0] < 110,
            "attention collapses": grown[10.0][1] < 0.2,
            "normalised they stay": abs(normed[10.0][0] - normed[1.0][0]) < 1e-3,
        },
    )  # fmt: skip


def _attention(scale: float, normed: bool) -> tuple[float, float]:
    """The largest logit and the mean entropy of attention over 32 tokens."""
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    q, k = (x @ (scale * torch.randn(64, 64) / 8) for _ in range(2))
    logits: Tensor
    logits = 8 * normalize(q, dim=-1) @ normalize(k, dim=-1).T if normed else q @ k.T / 8
    p = logits.softmax(-1)
    return float(logits.abs().max()), float(-(p * (p + 1e-12).log()).sum(-1).mean())
