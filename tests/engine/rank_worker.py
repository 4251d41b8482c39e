"""What each rank of the distributed tests runs; `launch.py` starts them. A story raises when it fails."""

from __future__ import annotations

import os
import random
import warnings
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from rank_reference import (
    Stream,
    assert_close,
    assert_same_on_all_ranks,
    backward,
    batches_of,
    counting,
    model_of,
    reference,
)
from save_stories import saving, sharded_saves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def exact(rank: int, world: int, folder: Path) -> None:
    """Random windows, ragged batches, unequal counts, with and without a known length, against one big batch."""
    for seed in range(16):
        rng = random.Random(seed)
        accumulate, weighted, clip = rng.randint(1, 4), rng.random() < 0.5, rng.choice([None, 0.05])
        counts = [rng.randint(1, 7) for _ in range(world)]
        batches = batches_of(rng, counts)
        ddp, want = DistributedDataParallel(model_of(seed)), model_of(seed)
        calls = counting(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        stepper = fallline.Stepper(
            ddp,
            optimizer,
            accumulate=accumulate,
            clip_norm=clip,
            scheduler=scheduler,
            reduction="mean",  # of the hook that counts
        )
        known = seed % 3 != 2
        data = (
            batches[rank]
            if known
            else torch.utils.data.DataLoader(Stream(batches[rank]), batch_size=None)
        )
        for epoch in range(2):
            for x, y in stepper.over(data):
                with stepper.micro_batch() as micro:
                    backward(micro, ddp, x, y, weighted)
            updates = reference(want, batches, accumulate, weighted, clip)
            assert stepper.updates == scheduler.last_epoch == (epoch + 1) * updates, (
                seed,
                stepper.updates,
                updates,
            )
        assert calls[0] == stepper.updates, (
            f"{calls[0]} all-reduces for {stepper.updates} updates (seed {seed})"
        )
        assert_close(ddp.module, want)
        assert_same_on_all_ranks(ddp)


def by_hand(rank: int, world: int, folder: Path) -> None:
    """Loops without `over`: last=True synchronises a remainder, and step() averages one that was not."""
    for last in (True, False):
        batches = batches_of(random.Random(5), [3 + rank_ for rank_ in range(world)])
        batches = [b[:3] for b in batches]
        ddp, want = DistributedDataParallel(model_of(1)), model_of(1)
        calls = counting(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        stepper = fallline.Stepper(ddp, optimizer, accumulate=2, reduction="mean")
        for i, (x, y) in enumerate(batches[rank]):
            with stepper.micro_batch(last=last and i == 2) as micro:
                backward(micro, ddp, x, y, True)
        if not last:
            stepper.step()
        reference(want, batches, 2, True, None)
        assert_close(ddp.module, want)
        assert_same_on_all_ranks(ddp)
        assert calls[0] == (2 if last else 1)


def loops(rank: int, world: int, folder: Path) -> None:
    """Left with break, accumulate changed on the way, and micro-batches that are masked on one rank or on all."""
    batches = batches_of(random.Random(11), [9 + r for r in range(world)])
    ddp, want = DistributedDataParallel(model_of(1)), model_of(1)
    stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), accumulate=2)
    sizes = []
    for part in range(4):
        for x, y in stepper.over(batches[rank]):
            with stepper.micro_batch() as micro:
                backward(micro, ddp, x, y, True)
            if stepper.updated:
                sizes.append(stepper.last.micro_batches)
                stepper.accumulate = [2, 3, 1, 2, 4][min(len(sizes), 4)]
            if part < 3 and sum(sizes) == [2, 5, 6][part]:
                break
    assert sizes[:4] == [2, 3, 1, 2], sizes
    edges = [0, 2, 5, 6, 8, 12]
    windows = [[b[i:j] for b in batches] for i, j in pairwise(edges)]
    for window in windows:
        reference(want, window, 4, True, None)
    assert stepper.updates == len(windows) and stepper.epoch == 1
    assert_close(ddp.module, want)
    assert_same_on_all_ranks(ddp)

    batches = batches_of(random.Random(12), [4] * world)
    for bad in (
        [(0, 1)],
        [(r, 1) for r in range(world)],
        [(r, i) for r in range(world) for i in (0, 1)],
    ):
        ddp, want = DistributedDataParallel(model_of(2)), model_of(2)
        stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), accumulate=2)
        for i, (x, y) in enumerate(stepper.over(batches[rank])):
            with stepper.micro_batch() as micro:
                if (rank, i) in bad:
                    micro.backward((ddp(x) - y).square().sum() * 0, weight=0)
                else:
                    backward(micro, ddp, x, y, True)
        kept = [
            [pair for i, pair in enumerate(b) if (r, i) not in bad] for r, b in enumerate(batches)
        ]
        halves = ([k[: len(k) - 2] for k in kept], [k[-2:] for k in kept])
        for window in halves:
            if any(window):
                reference(want, window, 4, True, None)
        assert stepper.updates == sum(map(any, halves))
        assert_close(ddp.module, want)


def overlap(rank: int, world: int, folder: Path) -> None:
    """Token counts are on their way before backward computes, and waited for after it."""
    ddp = DistributedDataParallel(model_of(1))
    stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), accumulate=2)
    seen = []
    replicas = stepper._replicas
    start, finish = replicas.start_sum, replicas.finish_sum
    replicas.start_sum = lambda *given: (seen.append("sent"), start(*given))[1]
    replicas.finish_sum = lambda *given: (seen.append("waited"), finish(*given))[1]
    next(ddp.parameters()).register_hook(lambda _: seen.append("computed"))
    for x, y in stepper.over(batches_of(random.Random(rank), [4] * world)[rank]):
        with stepper.micro_batch() as micro:
            backward(micro, ddp, x, y, True)
    assert seen == ["computed", "sent", "computed", "waited"] * 2, seen


def half_precision(rank: int, world: int, folder: Path) -> None:
    """A rank that overflows makes every rank skip, and the loss scales stay the same."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    stepper = fallline.Stepper(ddp, optimizer, accumulate=2, precision="fp16", clip_norm=1.0)
    for step in range(4):
        x = torch.randn(4, 3)
        if step == 1 and rank == world - 1:
            x[0, 0] = float("inf")
        with stepper.micro_batch() as micro:
            micro.backward(ddp(x).float().square().sum(), weight=8 + rank)
    assert stepper.attempts == 2 and stepper.updates == 1
    assert stepper.scaler.get_scale() == 32768.0
    assert_same_on_all_ranks(ddp)


def misuse(rank: int, world: int, folder: Path) -> None:
    ddp = DistributedDataParallel(model_of(0))
    stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    try:
        for _ in stepper.over([1, 2]):
            pass
    except EngineError as error:
        assert "exactly one" in str(error)
    else:
        raise AssertionError("a batch without micro_batch was accepted")
    stepper = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
    try:
        list(stepper.over([] if rank == 0 else [1]))
    except EngineError as error:
        assert "rank 0 has no data" in str(error)
    else:
        raise AssertionError("a rank without data was accepted")
    extra = nn.Parameter(torch.zeros(1))
    try:
        fallline.Stepper(ddp, torch.optim.SGD([*ddp.parameters(), extra], lr=0.1))
    except EngineError as error:
        assert "not in the model" in str(error)
    else:
        raise AssertionError("a parameter that nobody synchronises was accepted")


def train(folder: Path, steps: int) -> fallline.Stepper:
    fallline.seed_everything(3, rank=dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    dataset = torch.utils.data.TensorDataset(
        torch.randn(26, 3, generator=torch.Generator().manual_seed(0))
    )
    sampler = torch.utils.data.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, sampler=sampler)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    stepper = fallline.Stepper(ddp, optimizer, accumulate=2, clip_norm=0.5)
    fallline.load_checkpoint(folder, stepper=stepper)
    while stepper.updates < steps:
        for (x,) in stepper.over(loader):
            with stepper.micro_batch() as micro:
                micro.backward(ddp(x).square().mean())
            if stepper.updated and stepper.updates >= steps:
                break
    fallline.save_checkpoint(folder, stepper=stepper)
    return stepper


def checkpoint(rank: int, world: int, folder: Path) -> None:
    """Stop in mid-epoch and continue: every rank's dropout and data are restored, to the bit."""
    straight = train(folder / "straight", 7)
    train(folder / "stopped", 4)
    resumed = train(folder / "stopped", 7)
    for a, b in zip(straight.models[0].parameters(), resumed.models[0].parameters(), strict=True):
        assert torch.equal(a, b)
    assert_same_on_all_ranks(resumed.models[0])
    assert len(list((folder / "stopped").iterdir())) == 2


def resume(rank: int, world: int, folder: Path) -> None:
    """verify_resume with every rank, and what a rank forgets is everybody's."""
    assert fallline.verify_resume(train, steps=5, stop=2)

    def forgetful(where: Path, steps: int) -> fallline.Stepper:
        if rank == 1 and (where / "step-00000003.pt").exists():
            train_again = train(where, steps)
            with torch.no_grad():
                train_again.models[0].module[0].weight[0, 0] += rank
            return train_again
        return train(where, steps)

    report = fallline.verify_resume(forgetful, steps=6, stop=3)
    assert not report and "models.0.module.0.weight" in str(report), report


def going_back(rank: int, world: int, folder: Path) -> None:
    """A spike that one rank sees takes all ranks back, and they end where the run without those samples ends: from memory and from disk."""
    from torch.distributed.fsdp import fully_shard

    data = torch.randn(120, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def run(wrap, left_out, rewind, damage=False):
        model = wrap(model_of(3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        stepper = fallline.Stepper(model, optimizer, accumulate=2, clip_norm=1.0, on_spike=rewind)
        stepper._position.left_out = left_out
        order = fallline.Order(120, 2, seed=1, rank=rank, world_size=world)
        targets = data[:, 3:].clone()
        targets[order.samples(0, 90, 91)] = 1e6
        dataset = torch.utils.data.TensorDataset(data[:, :3], targets)
        for x, y in stepper.over(torch.utils.data.DataLoader(dataset, batch_sampler=order)):
            with stepper.micro_batch() as micro:
                backward(micro, model, x, y, True)
            if damage and stepper.updates == 10 and rank == 1:
                rewind._snapshots._kept[-1][1].wait()
                for file in (folder / "damaged").glob(f".step-00000008.pt.*-{os.getpid()}-*"):
                    file.write_bytes(b"")
        return model, stepper

    for wrap, where, damage in (
        (DistributedDataParallel, None, False),
        (DistributedDataParallel, folder / "ddp", False),
        (DistributedDataParallel, folder / "damaged", True),
        (fully_shard, None, False),
        (fully_shard, folder / "fsdp", False),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rewind = fallline.Rewind(every=4, folder=where)
            model, stepper = run(wrap, {}, rewind, damage)
        (back,) = rewind.history
        assert back.places[0] <= 90 < back.places[1], back
        # What one rank cannot read, no rank goes back to
        assert back.to == (4 if damage else 8), back
        want, reference_stepper = run(wrap, {0: [back.places]}, None)
        assert stepper.updates == reference_stepper.updates
        for a, b in zip(model.state_dict().values(), want.state_dict().values(), strict=True):
            a, b = (t.to_local() if hasattr(t, "to_local") else t for t in (a, b))
            assert torch.equal(a, b)
        if wrap is DistributedDataParallel:
            assert_same_on_all_ranks(model)


def fsdp(rank: int, world: int, folder: Path) -> None:
    """FSDP2: exact accumulation, the norm of the whole gradient, and sharded checkpoints."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))

    def sharded(seed: int) -> nn.Module:
        model = model_of(seed)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model[2], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def whole(model: nn.Module) -> list[torch.Tensor]:
        return [p.full_tensor() for p in model.parameters()]

    unequal = [2 + r for r in range(world)]
    for accumulate, counts, known in (
        (2, [5] * world, True),
        (3, unequal, True),
        (2, unequal, False),
        (4, unequal, False),
    ):
        batches = batches_of(random.Random(accumulate), counts)
        model, want = sharded(2), model_of(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stepper = fallline.Stepper(
            model, optimizer, accumulate=accumulate, clip_norm=0.05, statistics=True
        )
        data = (
            batches[rank]
            if known
            else torch.utils.data.DataLoader(Stream(batches[rank]), batch_size=None)
        )
        for x, y in stepper.over(data):
            with stepper.micro_batch() as micro:
                backward(micro, model, x, y, True)
        reference(want, batches, accumulate, True, 0.05)
        for a, b in zip(whole(model), want.parameters(), strict=True):
            assert float((a - b).detach().abs().max()) < 1e-12
        assert stepper.last.clipped
        assert abs(float(stepper.last.statistics.total_norm) - stepper.last.norm) < 1e-9
        row = stepper.last.statistics.rows()[0]
        assert row["elements"] == 15

    # The drop-in on DTensors is torch's.
    a, b = sharded(4), sharded(4)
    for model in (a, b):
        model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
    got, want_norm = (
        fallline.clip_grad_norm_(a.parameters(), 0.1),
        torch.nn.utils.clip_grad_norm_(b.parameters(), 0.1),
    )
    assert abs(float(got) - float(want_norm.full_tensor())) < 1e-12
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.allclose(p.grad.to_local(), q.grad.to_local(), atol=1e-14)

    def run(where: Path, steps: int) -> fallline.Stepper:
        model = sharded(6)
        stepper = fallline.Stepper(
            model, torch.optim.AdamW(model.parameters(), lr=0.01), accumulate=2
        )
        fallline.load_checkpoint(where, stepper=stepper)
        data = batches_of(random.Random(9), [8] * world)[rank]
        for x, y in stepper.over(data):
            with stepper.micro_batch() as micro:
                backward(micro, model, x, y, True)
            if stepper.updated and stepper.updates >= steps:
                break
        fallline.save_checkpoint(where, stepper=stepper, keep_last=1)
        return stepper

    straight = run(folder / "straight", 4)
    run(folder / "stopped", 2)
    resumed = run(folder / "stopped", 4)
    for a, b in zip(straight.models[0].parameters(), resumed.models[0].parameters(), strict=True):
        assert torch.equal(a.to_local(), b.to_local())
    dist.barrier()
    assert [p.name for p in (folder / "stopped").iterdir()] == ["step-00000004"]
    sharded_saves(rank, world, folder, run)


STORIES = {
    story.__name__: story
    for story in (
        *(exact, by_hand, loops, overlap, half_precision, misuse),
        *(checkpoint, saving, resume, going_back, fsdp),
    )
}


def prepare(names: list[str]) -> None:
    """What the ranks share: imported once, before they are forked."""
    if "frameworks" in names:
        import accelerate.accelerator  # noqa: F401
        import lightning.fabric  # noqa: F401


def run(names: list[str], rank: int, world: int, folder: Path, stories=STORIES) -> None:
    for name in names:
        store = folder / f"store-{name}-{world}"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=200),
        )
        stories[name](rank, world, folder / name)
        dist.barrier()  # nobody leaves while a neighbour still talks to it
        dist.destroy_process_group()
