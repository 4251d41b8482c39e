"""FL308: torch's clip on the shards of an FSDP1 model, and the model's own."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, mse, network
from fallline.proof.ranks import on_ranks

MAX_NORM = 0.1


@experiment(
    "FL308",
    claim="torch's clip_grad_norm_ on FSDP1 shards sees a different norm on each rank and leaves a gradient that is too long; the model's own sees one.",
)
def clip_local_shard() -> Measured:
    wrong, right = (on_ranks(partial(_clip, own=own)) for own in (False, True))
    left_wrong, left_right = (sum(kept**2 for _, kept in r) ** 0.5 for r in (wrong, right))
    return Measured(
        sides={
            "wrong": {
                "norm that rank 0 sees": wrong[0][0],
                "norm that rank 1 sees": wrong[1][0],
                f"whole norm after clipping at {MAX_NORM:g}": left_wrong,
            },
            "right": {
                "norm that rank 0 sees": right[0][0],
                "norm that rank 1 sees": right[1][0],
                f"whole norm after clipping at {MAX_NORM:g}": left_right,
            },
        },
        conclusion=f"rank 0 saw a norm of {wrong[0][0]:.2f} and rank 1 {wrong[1][0]:.2f} of one gradient of {right[0][0]:.2f}; clipped at {MAX_NORM:g} "
        f"by each its whole norm is {left_wrong:.3f}, by the model's own method {left_right:.3f}",
        holds={
            "each rank sees another norm": abs(wrong[0][0] / wrong[1][0] - 1) > 0.01,
            "the whole gradient stays too long": left_wrong > 1.05 * MAX_NORM,
            "the model's own method sees the same norm everywhere": right[0][0] == right[1][0],
            "and keeps to the threshold": abs(left_right / MAX_NORM - 1) < 1e-3,
        },
    )


def _clip(rank: int, world: int, *, own: bool) -> tuple[float, float]:
    """The norm that this rank's clip saw, and the norm of the shard that it left."""
    warnings.simplefilter("ignore")  # FSDP1 says that FSDP2 is its successor
    model = FullyShardedDataParallel(
        network(), device_id=torch.device("cpu"), use_orig_params=False
    )
    (x, y) = batches(rank, 1)[0]
    mse(model(x), y).backward()
    if own:
        seen = model.clip_grad_norm_(MAX_NORM)
    else:
        seen = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    kept = sum(p.grad.pow(2).sum().item() for p in model.parameters() if p.grad is not None)
    return float(seen), kept**0.5
