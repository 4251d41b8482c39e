"""FL107: 6 micro-batches in windows of 4 leave 2 over: dropped, carried over, divided by 4, or by their own count."""

from __future__ import annotations

import torch
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import gradient

K = 4
LEFT = 2
DRAWS = 20


@experiment(
    "FL107",
    claim="Left-over micro-batches: dropped, they are never learned from; carried over, the next update is too heavy; divided by k, they count r / k.",
    taught="One more optimizer.step() at the end of the epoch takes care of the left-over micro-batches.",
)
def accumulation_remainder() -> Measured:
    alone = _norm(K, divisor=K)
    carried = _norm(LEFT + K, divisor=K)  # the next epoch's first window on top of what is left
    shares = [_norm(r, divisor=K) / _norm(r, divisor=r) for r in (1, 2, 3)]
    dropped, flushed = _learned(flush=False), _learned(flush=True)
    return Measured(
        sides={
            "wrong": {
                "next epoch's first norm": carried,
                "micro-batches never learned from": dropped.count(0.0),
                "weight of 1 left over": shares[0],
                "weight of 2 left over": shares[1],
                "weight of 3 left over": shares[2],
            },
            "right": {
                "next epoch's first norm": alone,
                "micro-batches never learned from": flushed.count(0.0),
                "weight of 1 left over": 1.0,
                "weight of 2 left over": 1.0,
                "weight of 3 left over": 1.0,
            },
        },
        conclusion=f"with r = {LEFT} left over of k = {K}: carried over, the next update's norm is {carried / alone:.2f} times too large on average; dropped, the same "
        f"{dropped.count(0.0)} of 6 micro-batches are never learned from; divided by k, 1, 2 and 3 of them count {', '.join(f'{s:.2f}' for s in shares)}",
        holds={
            "carried over, the next update is too heavy": 1.2 < carried / alone < 1.8,
            "divided by k, they count r / k": all(
                abs(share - r / K) < 1e-5 for r, share in zip((1, 2, 3), shares, strict=True)
            ),
            "dropped, they are the same in every epoch": [
                i for i, w in enumerate(dropped) if w == 0
            ]
            == [4, 5],
            "flushed, every micro-batch is learned from": flushed.count(0.0) == 0,
        },
        curves={"wrong": dropped, "right": flushed},
        axes=("micro-batch of the epoch", "what was learned from it"),
        positions=range(1, 7),
    )


def _norm(micro_batches: int, *, divisor: int) -> float:
    """The gradient norm after this many backward passes, on average: some micro-batches are heavier than others."""
    norms = []
    for seed in range(DRAWS):
        model, windows = regression(updates=1, k=micro_batches, seed=seed)
        for x, y in windows[0]:
            (mse_loss(model(x), y) / divisor).backward()
        norms.append(float(gradient(model).norm()))
    return sum(norms) / DRAWS


def _learned(*, flush: bool) -> list[float]:
    """One weight for each of 6 micro-batches: how far each has come towards 1 after 20 epochs in a fixed order."""
    weights = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.5)
    for _ in range(20):
        for i in range(6):
            last = i + 1 == 6
            count = LEFT if flush and i >= K else K
            ((weights[i] - 1) ** 2 / count).backward()
            if (i + 1) % K == 0 or (last and flush):
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()
    return weights.tolist()
