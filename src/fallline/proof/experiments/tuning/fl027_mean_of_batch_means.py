"""FL027: the mean of batch means and the mean over samples, with a small last batch."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment

SAMPLES = 641


@experiment(
    "FL027",
    claim="The mean of the batches' means depends on the batch size where the last batch is smaller; the mean over samples does not.",
)
def mean_of_batch_means() -> Measured:
    torch.manual_seed(0)
    losses = torch.rand(SAMPLES)
    losses[-1] = 20.0  # one hard sample, at the end of the set
    wrong = [_means(losses, size) for size in (64, 32)]
    right = [sum(part.sum().item() for part in losses.split(size)) / SAMPLES for size in (64, 32)]
    places = torch.eye(SAMPLES)
    weight = _means(places[-1], 64) / _means(places[0], 64)  # of the last sample, to the first
    return Measured(
        sides={
            "wrong": {
                "batches of 64": wrong[0],
                "batches of 32": wrong[1],
                "weight of the last sample": weight,
            },
            "right": {
                "batches of 64": right[0],
                "batches of 32": right[1],
                "weight of the last sample": 1.0,
            },
        },
        conclusion=f"of the same {SAMPLES} losses the mean of batch means is {wrong[0]:.3f} with batches of 64 and {wrong[1]:.3f} with batches of 32; the mean over samples is {right[0]:.3f} with both; after {SAMPLES // 64} batches of 64 the one sample of the last batch counts like {weight:.0f}",
        holds={
            "it depends on the batch size": abs(wrong[0] - wrong[1]) > 0.1,
            "the last sample counts like a whole batch": abs(weight - 64) < 1e-3,
            "over samples it does not": abs(right[0] - right[1]) < 1e-5,
        },
    )


def _means(losses: torch.Tensor, size: int) -> float:
    parts = losses.split(size)
    return float(sum(part.mean().item() for part in parts)) / len(parts)
