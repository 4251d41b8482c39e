"""FL215: a contrastive loss on float16 features with autocast turned off, with and without .float()."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._autocast import (
    OPERATIONS,
    contrastive,
    dispatched,
    half_embeddings,
    names,
)

TEMPERATURE = 0.07
KEPT = ("exp", "log", "sum", "softmax", "norm")


@experiment(
    "FL215",
    claim="autocast(enabled=False) leaves float16 inputs in float16, where CUDA autocast would have run exp, log, sum, softmax and norms in float32: a finite loss becomes NaN.",
    taught="Turning autocast off around the loss cures its NaN.",
)
def autocast_off_without_cast() -> Measured:
    features = half_embeddings()
    with torch.autocast("cpu", enabled=False):
        wrong = contrastive(features, TEMPERATURE).item()
        right = contrastive(features.float(), TEMPERATURE).item()
        off = names({name: OPERATIONS[name](torch.ones(8, 8).half()) for name in KEPT})
    under_autocast = dispatched("cuda")
    # The loss with the type that CUDA autocast gives to exp.
    finite = contrastive(features, TEMPERATURE, exp_in=getattr(torch, under_autocast["exp"]))
    on = {name: under_autocast[name] for name in KEPT}
    return Measured(
        sides={
            # What autocast would have done is right as well as .float().
            "wrong": {"loss": f"{wrong:g}", **{f"{name} runs in": off[name] for name in KEPT}},
            "right": {"loss": f"{right:.2g}", **{f"{name} runs in": on[name] for name in KEPT}},
        },
        conclusion=f"with autocast off the loss at temperature {TEMPERATURE:g} is {wrong:g} on float16 features and {right:.1e} on .float() ones; CUDA autocast runs {', '.join(KEPT)} "
        f"in {on['exp']}, turned off they stay in {off['exp']}",
        holds={
            "turned off without a cast the loss is NaN": wrong != wrong,
            "with .float() it is finite": 0 <= right < 1,
            "CUDA autocast would have used float32": set(on.values()) == {"float32"},
            "in which the loss is finite without a cast": 0 <= finite.item() < 1,
            "turned off, float16 stays": set(off.values()) == {"float16"},
        },
    )
