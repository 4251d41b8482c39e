"""FL302: `no_sync` around the backward pass alone, and around forward and backward."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, in_ddp, mse, network
from fallline.proof.ranks import on_ranks

K = 4


@experiment(
    "FL302",
    claim="no_sync around backward alone saves nothing: DDP decides in the forward pass whether the backward pass all-reduces.",
    taught="Wrap backward() in no_sync() on all micro-batches but the last.",
)
def no_sync_without_forward() -> Measured:
    plain, backward, forward, both = (
        on_ranks(partial(_sent, around=around))[0]
        for around in ("nothing", "backward", "forward", "both")
    )
    return Measured(
        sides={
            "wrong": {"all-reduces for one update": backward[-1]},
            "right": {"all-reduces for one update": both[-1]},
            "no no_sync at all": {"all-reduces for one update": plain[-1]},
            "around the forward pass alone": {"all-reduces for one update": forward[-1]},
        },
        conclusion=f"with {K} micro-batches, no_sync around backward alone makes {backward[-1]} all-reduces, as many as without it "
        f"({plain[-1]}); around the forward pass too it makes {both[-1]}, around the forward pass alone {forward[-1]}",
        holds={
            "around backward alone it changes nothing": backward == plain,
            "around both only the last one is sent": both == [0, 0, 0, 1],
            "the forward pass decides": forward == both,
        },
        curves={"wrong": backward, "right": both},
        axes=("micro-batch", "all-reduces so far"),
        positions=range(1, K + 1),
    )


def _sent(rank: int, world: int, *, around: str) -> list[int]:
    model, traffic = in_ddp(network())
    sent = []
    for i, (x, y) in enumerate(batches(rank, K)):
        quiet = i + 1 < K
        with model.no_sync() if quiet and around in ("forward", "both") else nullcontext():
            loss = mse(model(x), y) / K
        with model.no_sync() if quiet and around in ("backward", "both") else nullcontext():
            loss.backward()
        sent.append(traffic.all_reduces)
    return sent
