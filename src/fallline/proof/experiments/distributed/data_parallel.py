"""DistributedDataParallel on two gloo ranks: what it sends, what it averages, and what it leaves apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat, gradient, off
from fallline.proof.experiments.distributed._ddp import (
    Batch,
    Traffic,
    batches,
    in_ddp,
    mse,
    network,
)
from fallline.proof.ranks import on_ranks

K = 4  # micro-batches of a window
DRAWS = 16  # batches whose errors are averaged: one that has a single sample can be lucky


class _Wrapped:
    """The same small model in DDP on every rank, with data of the rank's own."""

    def __init__(self, rank: int) -> None:
        self.model = network()
        self.ddp, self.traffic = in_ddp(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = iter(batches(rank, 20))

    def loss(self) -> Tensor:
        x, y = next(self.batches)
        return mse(self.ddp(x), y)


def _spread(values: list[Tensor]) -> float:
    """The largest difference between ranks."""
    return float((values[0] - values[1]).abs().max())


@experiment(
    "no-sync-needs-the-forward",
    claim="no_sync counts at the forward: around backward alone it saves nothing.",
    taught="Wrap only backward() in no_sync().",
)
def no_sync_needs_the_forward() -> Measured:
    sent = {inside: traffic.all_reduces for inside, traffic in on_ranks(_sent)[0].items()}
    return Measured(
        sides={
            f"in no_sync: {how}": {"all-reduces of 4 micro-batches": s} for how, s in sent.items()
        },
        conclusion=f"all-reduces of {K} micro-batches: {sent['neither']} without no_sync, {sent['backward']} with backward in it, {sent['both']} with forward and backward in it, {sent['forward']} with forward alone",
        holds={
            "backward alone saves nothing": sent["backward"] == sent["neither"] == K,
            "forward and backward save all but one": sent["both"] == 1,
            "the forward decides": sent["forward"] == 1,
        },
    )


@experiment(
    "no-sync-traffic",
    claim="no_sync makes k micro-batches send what one sends: k times less.",
    taught="no_sync gives three times less communication (with k = 4).",
)
def no_sync_traffic() -> Measured:
    sent = on_ranks(_sent)[0]
    every, once = sent["neither"], sent["both"]
    ratio = every.bytes / once.bytes
    return Measured(
        sides={
            "sync each time": {"all-reduces": every.all_reduces, "bytes": every.bytes},
            "no_sync": {"all-reduces": once.all_reduces, "bytes": once.bytes},
        },
        conclusion=f"with k = {K}: {every.all_reduces} all-reduces and {every.bytes:,} bytes become {once.all_reduces} and {once.bytes:,}, {ratio:.0f} times less",
        holds={"k times less": ratio == K},
    )


def _sent(rank: int, world: int) -> dict[str, Traffic]:
    return {
        inside: _sent_with(inside, rank) for inside in ("neither", "backward", "forward", "both")
    }


def _sent_with(inside: str, rank: int) -> Traffic:
    """What a window of K micro-batches sends; all but the last have forward, backward, both or neither in no_sync."""
    wrapped = _Wrapped(rank)
    for i in range(K):
        last = i == K - 1
        quiet: Callable[[], Any] = nullcontext if last else wrapped.ddp.no_sync
        with quiet() if inside in ("forward", "both") else nullcontext():
            loss = wrapped.loss() / K
        with quiet() if inside in ("backward", "both") else nullcontext():
            loss.backward()
    return wrapped.traffic


@experiment(
    "no-sync-speedup",
    claim="no_sync leaves one all-reduce of k. By arithmetic a window can then be at most (c + s) / (c + s/k) times faster, c being the computing and s the exposed communication of a micro-batch: never k times.",
    taught="no_sync: 40 s become 12 s; 2 GPUs twice, 4 GPUs three times, 8 GPUs four times as fast.",
)
def no_sync_speedup() -> Measured:
    shares = (
        0.14,
        1.0,
        4.0,
        14.0,
    )  # communication of one all-reduce, in computing of one micro-batch
    sent = on_ranks(_sent)[0]
    every, once = sent["neither"].all_reduces, sent["both"].all_reduces
    faster = [(K + every * share) / (K + once * share) for share in shares]
    return Measured(
        sides={
            f"communication / computing {share:g}": {"times faster": gain}
            for share, gain in zip(shares, faster, strict=True)
        },
        conclusion=(
            f"a window of {K} micro-batches makes {every} all-reduces, with no_sync {once}. If communication takes {', '.join(f'{s:g}' for s in shares)} times as long "
            f"as computing, that makes it {', '.join(f'{g:.2f}' for g in faster)} times faster"
        ),
        holds={
            "k all-reduces become one": (every, once) == (K, 1),
            "40 s to 12 s needs 14 times more communication than computing": abs(
                faster[-1] - 40 / 12
            )
            < 0.01,
            "never k times": max(faster) < K,
        },
        curves={"times faster": faster},
        axes=("communication / computing", "times faster"),
        positions=shares,
    )


@experiment(
    "leftover-unsynchronised",
    claim="Leftover micro-batches that were all in no_sync are stepped on unsent: the ranks' weights part, and stay apart.",
    taught="A loop with no_sync, accumulation and a final step for the leftovers combines all techniques correctly.",
)
def leftover_unsynchronised() -> Measured:
    found = on_ranks(_leftovers)
    apart, later, synced, synced_later = (_spread([f[i] for f in found]) for i in range(4))
    return Measured(
        sides={
            "leftovers in no_sync": {
                "weights differ between ranks": apart,
                "after one more synced step": later,
            },
            "last micro-batch synced": {
                "weights differ between ranks": synced,
                "after one more synced step": synced_later,
            },
        },
        conclusion=f"after 6 micro-batches with k = {K} the ranks' weights differ by {apart:.3f}, and still by {later:.3f} after a synced step; with the last one synced by {synced:g}",
        holds={
            "ranks part": apart > 1e-4,
            "and stay apart": later > 0.5 * apart,
            "a synced last micro-batch keeps them together": synced == 0,
        },
    )


def _leftovers(rank: int, world: int) -> list[Tensor]:
    """Weights after an epoch of 6 micro-batches and after one more synced step; then with the last one synced."""
    found = []
    for sync_last in (False, True):
        wrapped = _Wrapped(rank)
        for i in range(6):
            boundary = (i + 1) % K == 0 or (sync_last and i == 5)
            with nullcontext() if boundary else wrapped.ddp.no_sync():
                (wrapped.loss() / K).backward()
            if boundary or i == 5:
                wrapped.optimizer.step()
                wrapped.optimizer.zero_grad()
        found.append(flat(wrapped.model.parameters()))
        wrapped.loss().backward()
        wrapped.optimizer.step()
        found.append(flat(wrapped.model.parameters()))
    return found


@experiment(
    "ddp-clipping-is-consistent",
    claim="After a synced backward every rank clips by the same norm; inside no_sync each clips by its own.",
)
def ddp_clipping_is_consistent() -> Measured:
    synced, local = zip(*on_ranks(_clip_norms), strict=True)
    return Measured(
        sides={
            "after a synced backward": {f"norm on rank {r}": n for r, n in enumerate(synced)},
            "inside no_sync": {f"norm on rank {r}": n for r, n in enumerate(local)},
        },
        conclusion=f"synced: {synced[0]:.3f} and {synced[1]:.3f}; inside no_sync: {local[0]:.3f} and {local[1]:.3f}",
        holds={
            "the same after a sync": synced[0] == synced[1],
            "not inside no_sync": local[0] != local[1],
        },
    )


def _clip_norms(rank: int, world: int) -> tuple[float, float]:
    synced, local = _Wrapped(rank), _Wrapped(rank)
    synced.loss().backward()
    with local.ddp.no_sync():
        local.loss().backward()
    return tuple(float(clip_grad_norm_(w.model.parameters(), 1.0)) for w in (synced, local))  # type: ignore[return-value]


@experiment(
    "ddp-accumulation-averages",
    claim="Gradients accumulated under no_sync and sent once are those of the big batch of all ranks.",
)
def ddp_accumulation_averages() -> Measured:
    sent, unsent = on_ranks(_accumulated)[0]
    return Measured(
        sides={
            "sent with the last micro-batch": {"gradient error": sent},
            "never sent": {"gradient error": unsent},
        },
        conclusion=(
            "the gradient of 2 ranks and 4 micro-batches is that of one big batch, to 1e-5"
            if sent < 1e-5
            else f"the gradient is off by {sent:g}"
        )
        + f"; with the last one under no_sync as well it is {100 * unsent:.0f}% off",
        holds={"the same gradient": sent < 1e-5, "not where nothing is sent": unsent > 0.05},
    )


def _accumulated(rank: int, world: int) -> tuple[float, float]:
    """How far this rank's gradient is from that of all ranks' data in one batch: sent once, and never."""
    every = [batch for r in range(world) for batch in batches(r, 20)[:K]]
    whole = network()
    mse(whole(torch.cat([x for x, _ in every])), torch.cat([y for _, y in every])).backward()
    errors = []
    for quiet in (K - 1, K):
        wrapped = _Wrapped(rank)
        for i in range(K):
            with wrapped.ddp.no_sync() if i < quiet else nullcontext():
                (wrapped.loss() / K).backward()
        errors.append(off(gradient(wrapped.model), gradient(whole)))
    return errors[0], errors[1]


@experiment(
    "ddp-unequal-counts",
    claim="DDP averages ranks, not samples: with unequal counts the gradient is wrong unless the loss is sum · ranks / all samples.",
    taught="DDP's averaging gives the right global gradient.",
)
def ddp_unequal_counts() -> Measured:
    found = on_ranks(_unequal)[0]
    errors = {counts: error for counts, (error, _) in found.items()}
    weighted = max(error for _, error in found.values())
    return Measured(
        sides={
            "mean on each rank": {
                f"gradient error, {a} and {b} samples": e for (a, b), (e, _) in found.items()
            },
            "sum · ranks / all samples": {
                f"gradient error, {a} and {b} samples": e for (a, b), (_, e) in found.items()
            },
        },
        conclusion=f"the gradient is {100 * errors[16, 4]:.0f}% off with 16 and 4 samples, {100 * errors[16, 1]:.0f}% with 16 and 1, on average of {DRAWS} batches; weighted by the global count it is exact",
        holds={
            "exact where counts are equal": errors[16, 16] < 1e-5,
            "more than 10 percent off at 16 and 4": errors[16, 4] > 0.1,
            "worse at 16 and 1": errors[16, 1] > errors[16, 4],
            "weighted it is exact": weighted < 1e-5,
        },
    )


def _unequal(rank: int, world: int) -> dict[tuple[int, int], tuple[float, float]]:
    """Gradient errors of the mean on each rank, and of the weighted sum, for each pair of counts."""
    found = {}
    for counts in ((16, 16), (16, 4), (16, 1)):
        draws = zip(*(batches(r, DRAWS, size=n) for r, n in enumerate(counts)), strict=True)
        errors = [_errors(rank, every) for every in draws]
        means, weighted = zip(*errors, strict=True)
        found[counts] = sum(means) / DRAWS, max(weighted)
    return found


def _errors(rank: int, every: tuple[Batch, ...]) -> tuple[float, float]:
    """Of one batch for each rank."""
    whole, mean, weighted = network(), _Wrapped(rank), _Wrapped(rank)
    xs, ys = zip(*every, strict=True)
    mse(whole(torch.cat(xs)), torch.cat(ys)).backward()
    x, y = every[rank]
    mse(mean.ddp(x), y).backward()
    samples = sum(len(y) for y in ys)
    (mse(weighted.ddp(x), y, reduction="sum") * len(every) / samples).backward()
    truth = gradient(whole)
    return off(gradient(mean.model), truth), off(gradient(weighted.model), truth)


@experiment(
    "manual-all-reduce-under-ddp",
    claim="Under DDP one more all-reduce is harmless as a mean and multiplies the gradient by the number of ranks as a sum.",
    taught="Synchronising gradients by hand under DDP is always wrong.",
)
def manual_all_reduce_under_ddp() -> Measured:
    before, mean, total = on_ranks(_reduced_again)[0]
    changed, factor = float((mean - before).abs().max()), float(total.norm() / before.norm())
    return Measured(
        sides={
            "DDP alone": {"gradient norm": float(before.norm())},
            "all-reduced again as a mean": {"gradient norm": float(mean.norm())},
            "all-reduced again as a sum": {"gradient norm": float(total.norm())},
        },
        conclusion=f"a second all-reduce changes the gradient by {changed:g} as a mean, and makes it {factor:.1f} times as long as a sum",
        holds={
            "a mean changes nothing": changed < 1e-7,
            "a sum doubles it": abs(factor - 2) < 1e-4,
        },
    )


def _reduced_again(rank: int, world: int) -> tuple[Tensor, Tensor, Tensor]:
    wrapped = _Wrapped(rank)
    wrapped.loss().backward()
    before = gradient(wrapped.model)
    total = before.clone()
    dist.all_reduce(total)
    return before, total / world, total


@experiment(
    "overflow-spreads-to-all-ranks",
    claim="An inf on one rank reaches all by the all-reduce: every scaler skips the step and halves its scale, and the ranks stay together.",
)
def overflow_spreads_to_all_ranks() -> Measured:
    found = on_ranks(_overflow)
    bad, scales, moved = ([f[i] for f in found] for i in range(3))
    return Measured(
        sides={
            f"rank {r}": {
                "gradients not finite": bad[r],
                "scale afterwards": scales[r],
                "weights moved by": moved[r],
            }
            for r in range(2)
        },
        conclusion=f"with an inf on rank 0 alone the two ranks see {bad[0]} and {bad[1]} gradients that are not finite, and both scales are {scales[0]:.0f}",
        holds={
            "both ranks see it": bad[0] == bad[1] > 0,
            "both scales are halved": scales == [32768.0, 32768.0],
            "neither rank steps": moved == [0.0, 0.0],
        },
    )


def _overflow(rank: int, world: int) -> tuple[int, float, float]:
    wrapped, scaler = _Wrapped(rank), GradScaler("cpu")
    start = flat(wrapped.model.parameters())
    loss = wrapped.loss() * (float("inf") if rank == 0 else 1.0)
    scaler.scale(loss).backward()
    bad = int((~gradient(wrapped.model).isfinite()).sum())
    scaler.step(wrapped.optimizer)
    scaler.update()
    return bad, scaler.get_scale(), float((flat(wrapped.model.parameters()) - start).norm())


@experiment(
    "distributed-setup",
    claim="Without set_epoch a DistributedSampler repeats the same order each epoch; DDP's buckets hold 25 MiB by default.",
)
def distributed_setup() -> Measured:
    from torch.utils.data.distributed import DistributedSampler

    sampler: DistributedSampler[int] = DistributedSampler(range(100), num_replicas=2, rank=0)  # type: ignore[arg-type]
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(1)
    third = list(sampler)
    bucket = on_ranks(_bucket_bytes)[0] / 2**20
    return Measured(
        sides={
            "no set_epoch": {"second epoch in the same order": first == second},
            "set_epoch": {"second epoch in the same order": first == third},
        },
        conclusion=f"without set_epoch the second epoch repeats the first, with it it does not; DDP's default bucket is {bucket:g} MiB",
        holds={
            "the same order without set_epoch": first == second,
            "another with it": first != third,
            "25 MiB": bucket == 25,
        },
    )


def _bucket_bytes(rank: int, world: int) -> int:
    return int(_Wrapped(rank).ddp.bucket_bytes_cap)
