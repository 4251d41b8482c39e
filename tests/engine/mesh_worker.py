"""What each rank runs of the tests with four ranks: meshes of two dimensions, and what wrappers really do to gradients.

`python mesh_worker.py STORIES RANK WORLD FOLDER`, as rank_worker.py. Every wrapper goes through the same loop, and the result is
compared with one process that sees all ranks' batches at once.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from rank_worker import batches_of, main, reference
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import fallline
from fallline.errors import EngineError

warnings.filterwarnings("ignore", category=FutureWarning)


class Wide(nn.Module):
    """A model whose two layers can be split over tensor-parallel ranks, and one that cannot."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.out = nn.Linear(3, 8), nn.Linear(8, 4), nn.Linear(4, 2)
        self.double()

    def forward(self, x):
        return self.out(torch.tanh(self.down(torch.tanh(self.up(x)))))


def tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard(model, mesh, factor=None):
    for layer in (model.up, model.down, model.out):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if factor is not None:
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(factor)
    return model


class Case:
    """A wrapped model, which data this rank reads (of how many), and its whole parameters."""

    def __init__(self, model, reader, readers, **options):
        self.model, self.reader, self.readers, self.options = model, reader, readers, options

    def whole(self):
        return [p.full_tensor() if isinstance(p, DTensor) else p for p in self.model.parameters()]


def cases(rank: int, world: int, seed: int):
    """Every way of wrapping that the Stepper says it understands."""
    half = world // 2
    yield "ddp", lambda: Case(DistributedDataParallel(Wide(seed)), rank, world)
    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    yield "fsdp", lambda: Case(shard(Wide(seed), flat), rank, world)
    yield "fsdp, sums", lambda: Case(shard(Wide(seed), flat, 1.0), rank, world)
    yield "tp", lambda: Case(tensor_parallel(Wide(seed), flat), 0, 1)
    mesh = init_device_mesh("cpu", (2, half), mesh_dim_names=("dp", "tp"))
    place = mesh["dp"].get_local_rank()
    yield "hsdp", lambda: Case(shard(Wide(seed), mesh), rank, world)
    yield (
        "fsdp x tp",
        lambda: Case(shard(tensor_parallel(Wide(seed), mesh["tp"]), mesh["dp"]), place, 2),
    )
    yield (
        "fsdp x tp, sums",
        lambda: Case(shard(tensor_parallel(Wide(seed), mesh["tp"]), mesh["dp"], 1.0), place, 2),
    )
    from torch.distributed._composable.replicate import replicate

    yield "replicate", lambda: Case(replicate(Wide(seed)), rank, world)
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_fsdp
    except ImportError:  # torch before 2.9
        return
    yield "replicate on fsdp", lambda: Case(replicate_fsdp(Wide(seed), mesh=flat), rank, world)
    yield (
        "ddp x tp",
        lambda: Case(
            replicate_fsdp(tensor_parallel(Wide(seed), mesh["tp"]), mesh=mesh["dp"]), place, 2
        ),
    )


def step(case, stepper, x, y, weighted):
    with stepper.micro_batch() as micro:
        if weighted:
            micro.backward((case.model(x) - y).square().sum(), weight=y.numel())
        else:
            micro.backward(nn.functional.mse_loss(case.model(x), y))


def norms_agree(stepper) -> float:
    mine = torch.tensor([stepper.last.norm], dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    assert all(torch.equal(mine, other) for other in every), f"norms differ: {every}"
    return float(mine)


def matrix(rank: int, world: int, folder: Path) -> None:
    """Plain, tokens with a remainder, clipped, and a NaN on one rank: every wrapper does what one process does."""
    for name, make in cases(rank, world, 3):
        for weighted, accumulate, clip in ((False, 1, None), (True, 2, 0.05), (False, 3, 0.05)):
            case, want = make(), Wide(3)
            batches = batches_of(random.Random(accumulate), [5] * case.readers)
            optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
            stepper = fallline.Stepper(
                case.model, optimizer, accumulate=accumulate, clip_norm=clip, **case.options
            )
            for x, y in stepper.over(batches[case.reader]):
                step(case, stepper, x, y, weighted)
            updates = reference(want, batches, accumulate, weighted, clip)
            assert stepper.updates == updates, (name, stepper.updates, updates)
            true = torch.stack([p.grad.norm() for p in want.parameters()]).norm()
            measured = norms_agree(stepper) * (stepper.last.coefficient if clip else 1.0)
            assert abs(measured - float(true)) < 1e-12, (name, weighted, measured, float(true))
            for a, b in zip(case.whole(), want.parameters(), strict=True):
                assert float((a - b).detach().abs().max()) < 1e-12, (name, weighted, clip)
        # One rank's batch turns bad, and no rank applies the update.
        before = [p.detach().clone() for p in case.whole()]
        x, y = batches[case.reader][0]
        bad = x.clone()
        bad[0, 0] = torch.nan if rank == world - 1 or case.readers == 1 else bad[0, 0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for inputs in (bad, x, x):
                step(case, stepper, inputs, y, False)
        assert stepper.last.skipped, name
        for a, b in zip(case.whole(), before, strict=True):
            assert torch.equal(a, b), f"{name}: a rank applied what another skipped"


def nan_in_one_shard(rank: int, world: int, folder: Path) -> None:
    """A NaN that only one tensor-parallel shard holds is everybody's: the whole norm is not finite anywhere."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    model = shard(tensor_parallel(Wide(1), mesh["tp"]), mesh["dp"])
    model(torch.ones(2, 3, dtype=torch.float64)).square().mean().backward()
    if rank == world - 1:
        model.up.weight.grad.to_local().fill_(torch.nan)
    norm = fallline.clip_grad_norm_(model.parameters(), 1.0)
    assert not torch.isfinite(norm), "this rank did not hear of the NaN"


def refusals(rank: int, world: int, folder: Path) -> None:
    """What nobody can know is refused in words; what the user says is believed."""

    def refused(says, make):
        try:
            make()
        except EngineError as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"accepted, and should say {says!r}")

    def stepper_of(model, **options):
        return fallline.Stepper(
            model, torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=1e9, **options
        )

    def summing(state, bucket):
        return (
            dist.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda future: future.value()[0])
        )

    # An unwrapped model on several ranks would drift apart.
    refused("not wrapped", lambda: stepper_of(Wide(0)))
    stepper_of(Wide(0), reduction="none")
    # A communication hook that sums.
    ddp = DistributedDataParallel(Wide(0))
    ddp.register_comm_hook(None, summing)
    refused("communication hook", lambda: stepper_of(ddp))
    batches = batches_of(random.Random(1), [1] * world)
    stepper, want = stepper_of(ddp, reduction="sum"), Wide(0)
    with stepper.micro_batch() as micro:
        micro.backward(nn.functional.mse_loss(ddp(batches[rank][0][0]), batches[rank][0][1]))
    reference(want, batches, 1, False, None)
    for a, b in zip(ddp.parameters(), want.parameters(), strict=True):
        assert float((a - b).detach().abs().max()) < 1e-12
    # torch's own hooks average, and are known.
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
        allreduce_hook,
        fp16_compress_wrapper,
    )

    for hook, fine in (
        (allreduce_hook, True),
        (fp16_compress_wrapper(allreduce_hook), True),
        (fp16_compress_wrapper(summing), False),
        (noop_hook, False),
    ):
        ddp = DistributedDataParallel(Wide(0))
        ddp.register_comm_hook(None, hook)
        if fine:
            stepper_of(ddp)
        else:
            refused("communication hook", lambda ddp=ddp: stepper_of(ddp))
    # HSDP given the shard group alone.
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    model = shard(Wide(0), mesh)
    refused(
        "reduces gradients over 4",
        lambda: stepper_of(model, process_group=mesh["shard"].get_group()),
    )
    # Part of the model outside the wrapper.
    half = nn.ModuleDict({"a": DistributedDataParallel(nn.Linear(2, 2)), "b": nn.Linear(2, 2)})
    refused("b.weight, b.bias: not synchronised", lambda: stepper_of(half))
    # DDP around tensor-parallel parameters hides the shards.
    from torch.distributed._composable.replicate import replicate

    flat = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    split = tensor_parallel(Wide(0), flat["tp"])
    refused(
        "replaces tensor-parallel", lambda: stepper_of(replicate(split, device_mesh=flat["dp"]))
    )
    split = DistributedDataParallel(tensor_parallel(Wide(0), flat["tp"]), device_mesh=flat["dp"])
    refused("hides that they are shards", lambda: stepper_of(split))


def only(ranks: int, rank: int, store: Path, story) -> None:
    """Run a story on the first ranks, as a job of its own; the others wait."""
    dist.barrier()
    world = dist.get_world_size()
    dist.destroy_process_group()
    if rank < ranks:
        where = f"file://{store}-{ranks}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
        story(rank, ranks)
        dist.barrier()
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}-all", rank=rank, world_size=world)
    dist.barrier()


def another_world_size(rank: int, world: int, folder: Path) -> None:
    """Stop on some ranks, continue on others: exactly the samples not yet seen, and what one process would have done."""
    data = torch.randn(46, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, y = data[:, :3], data[:, 3:]
    dataset = torch.utils.data.TensorDataset(x, y)

    def train(where, rank, ranks, stop, wrap):
        model = wrap(Wide(7), ranks)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        # The same eight samples for an update, on any number of ranks
        stepper = fallline.Stepper(model, optimizer, accumulate=4 // ranks, clip_norm=0.05)
        order = fallline.Order(46, 2, seed=5, rank=rank, world_size=ranks)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=order)
        loaded = fallline.load_checkpoint(where, stepper=stepper)
        assert (loaded is not None) == where.exists()
        for _ in range(3):
            for inputs, targets in stepper.over(loader):
                step(Case(model, 0, 1), stepper, inputs, targets, True)
                if stepper.updated and stepper.updates >= stop:
                    fallline.save_checkpoint(where, stepper=stepper)
                    return [
                        p.full_tensor() if isinstance(p, DTensor) else p.detach().clone()
                        for p in model.parameters()
                    ], stepper
        raise AssertionError("not enough data")

    def sharded(model, ranks):
        return shard(model, init_device_mesh("cpu", (ranks,)))

    def replicated(model, ranks):
        return DistributedDataParallel(model)

    want, alone = None, None
    if rank == 0:  # the reference: one process, all of a window at once, in the same order
        model = Wide(7)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        order = fallline.Order(46, 8, seed=5)
        batches = [b for epoch in range(3) for b in (order.set_epoch(epoch), list(order))[1]]
        for indices in batches[:8]:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[indices]), y[indices]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
        want, alone = [p.detach() for p in model.parameters()], batches

    for name, wrap in (("fsdp", sharded), ("ddp", replicated)):
        for few_first in (True, False):
            where = folder / f"{name}-{few_first}"
            where.parent.mkdir(exist_ok=True)

            result = [None]

            def few(rank, ranks, where=where, wrap=wrap, first=few_first, result=result):
                result[0] = train(where, rank, ranks, 3 if first else 8, wrap)

            if few_first:
                only(2, rank, folder.parent / f"few-{name}", few)
                result[0] = train(where, rank, world, 8, wrap)
            else:
                train(where, rank, world, 3, wrap)
                only(2, rank, folder.parent / f"many-{name}", few)
            if rank == 0:
                got, stepper = result[0]
                for a, b in zip(got, want, strict=True):
                    assert float((a - b).detach().abs().max()) < 1e-12, (name, few_first)
                for update in range(8):
                    assert stepper.samples_of(update) == (update // 6, alone[update])
    # An order that depends on the number of ranks cannot be carried over, and that is said on every rank.
    where = folder / "sampler"

    def unmovable(rank, ranks):
        model = DistributedDataParallel(Wide(7))
        stepper = fallline.Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
        sampler = torch.utils.data.DistributedSampler(dataset)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
        if where.exists():
            try:
                fallline.load_checkpoint(where, stepper=stepper)
            except EngineError as error:
                assert "saved by 2 ranks and is loaded by 4" in str(error), error
                return
            raise AssertionError("loaded")
        for inputs, targets in stepper.over(loader):
            step(Case(model, 0, 1), stepper, inputs, targets, False)
            if stepper.updates == 2:
                break
        fallline.save_checkpoint(where, stepper=stepper)

    only(2, rank, folder.parent / "unmovable", unmovable)
    unmovable(rank, world)


STORIES = {
    story.__name__: story for story in (matrix, nan_in_one_shard, refusals, another_world_size)
}

if __name__ == "__main__":
    main(STORIES)
