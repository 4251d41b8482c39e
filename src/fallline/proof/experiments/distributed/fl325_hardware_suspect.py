"""FL325: one bit of one weight flips on one of two ranks."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.ranks import on_ranks


@experiment(
    "FL325",
    claim="One flipped bit in a weight of one rank raises no error; the ranks train different models from then on, and the loss does not show it.",
)
def hardware_suspect() -> Measured:
    wrong = on_ranks(partial(_train, flips=True))
    right = on_ranks(partial(_train, flips=False))
    apart = {side: abs(a[0] - b[0]) for side, (a, b) in (("wrong", wrong), ("right", right))}
    losses = {"wrong": wrong[0][1], "right": right[0][1]}
    name, loss = "difference of the weight between the ranks", "loss on rank 0"
    return Measured(
        sides={side: {name: apart[side], loss: losses[side]} for side in ("wrong", "right")},
        conclusion=f"after 100 more updates the ranks' weights differ by {apart['wrong']:.3g}, and rank 0's loss is {losses['wrong']:.3g} instead of {losses['right']:.3g}",
        holds={
            "without the flip the ranks agree to the last bit": apart["right"] == 0.0,
            "with it they do not": apart["wrong"] > 1e-4,
            "the loss is finite": losses["wrong"] < 10,
        },
    )


def _train(rank: int, world: int, *, flips: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    torch.manual_seed(1 + rank)
    weight = next(model.parameters()).data
    for update in range(200):
        if update == 100 and rank == 1 and flips:
            weight.view(torch.int32)[0, 3] ^= 1 << 20
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    return float(weight[0, 3]), float(loss.detach())
