"""FL114: a small encoder, clipped Linear by Linear and as a whole."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import cosine, flat, gradient

MAX_NORM = 1.0


@experiment(
    "FL114",
    claim="Clipping the Linear layers one by one leaves Embedding, LayerNorm and the attention's own weights unclipped and turns the update.",
    taught="Clipping layer by layer bounds every layer.",
)
def clip_uneven() -> Measured:
    model = _encoder_with_gradients()
    before = gradient(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            clip_grad_norm_(module.parameters(), MAX_NORM)
    wrong = gradient(model)
    linear = {p for m in model.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    left_out = [p.grad for p in model.parameters() if p not in linear and p.grad is not None]
    missed = flat(left_out).norm().item()
    model = _encoder_with_gradients()
    clip_grad_norm_(model.parameters(), MAX_NORM)
    right = gradient(model)
    turned, kept = cosine(wrong, before), cosine(right, before)
    return Measured(
        sides={
            "wrong": {
                "total norm after clipping at 1": wrong.norm().item(),
                "of it in what is no Linear": missed,
                "cosine to the gradient": turned,
            },
            "right": {
                "total norm after clipping at 1": right.norm().item(),
                "cosine to the gradient": kept,
            },
        },
        conclusion=f"clipped at {MAX_NORM:g} Linear by Linear, a gradient of norm {before.norm():.0f} keeps {wrong.norm():.0f} and has a cosine of {turned:.2f} to what it was; "
        f"clipped as a whole {right.norm():.2f} and {kept:.2f}",
        holds={
            "the total is far above the threshold": bool(wrong.norm() > 10 * MAX_NORM),
            "it lies in what was left out": missed > 0.99 * float(wrong.norm()),
            "the direction changed": turned < 0.95,
            "as a whole it is at the threshold and keeps its direction": float(right.norm())
            <= MAX_NORM * 1.001
            and kept > 1 - 1e-6,
        },
    )


def _encoder_with_gradients() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(50, 32),
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        nn.Linear(32, 50),
    )
    tokens = torch.randint(50, (8, 16))
    loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    (1000 * loss).backward()  # a spike
    return model
