"""FL303: what one of two ranks sees over several epochs, with and without `set_epoch`."""

from __future__ import annotations

from collections.abc import Sized
from typing import cast

from torch.utils.data import DistributedSampler

from fallline.proof.experiment import Measured, experiment

EXAMPLES, WORLD, EPOCHS = 1000, 2, 6


@experiment(
    "FL303",
    claim="Without set_epoch every epoch has the same order, and a rank never sees more than its first share of the data.",
)
def sampler_epoch_missing() -> Measured:
    wrong, right = _epochs(told=False), _epochs(told=True)
    seen_wrong, seen_right = _seen(wrong), _seen(right)
    return Measured(
        sides={
            "wrong": {
                f"different orders in {EPOCHS} epochs": len(set(wrong)),
                "data that rank 0 has seen, percent": seen_wrong[-1],
            },
            "right": {
                f"different orders in {EPOCHS} epochs": len(set(right)),
                "data that rank 0 has seen, percent": seen_right[-1],
            },
        },
        conclusion=f"in {EPOCHS} epochs without set_epoch there was {len(set(wrong))} order and rank 0 of {WORLD} saw {seen_wrong[-1]:.0f}% of the data; "
        f"with it there were {len(set(right))} and it saw {seen_right[-1]:.0f}%",
        holds={
            "without it all epochs are the same": len(set(wrong)) == 1,
            "with it all are different": len(set(right)) == EPOCHS,
            "without it a rank sees only its first share": seen_wrong[-1] == 100 / WORLD,
            "with it nearly everything": seen_right[-1] > 95,
        },
        curves={"wrong": seen_wrong, "right": seen_right},
        axes=("epoch", "data that rank 0 has seen, percent"),
        positions=range(1, EPOCHS + 1),
    )


def _epochs(*, told: bool) -> list[tuple[int, ...]]:
    data = cast("Sized", range(EXAMPLES))
    sampler: DistributedSampler[int] = DistributedSampler(
        data,  # type: ignore[arg-type]  # a sampler only asks how long it is
        num_replicas=WORLD,
        rank=0,
    )
    orders = []
    for epoch in range(EPOCHS):
        if told:
            sampler.set_epoch(epoch)
        orders.append(tuple(sampler))
    return orders


def _seen(orders: list[tuple[int, ...]]) -> list[float]:
    """Percent of all data that was seen up to each epoch."""
    return [100 * len(set().union(*orders[: n + 1])) / EXAMPLES for n in range(len(orders))]
