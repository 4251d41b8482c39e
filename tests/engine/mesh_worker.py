"""What each rank runs of the tests on meshes: every wrapper and framework against one process that sees all ranks' batches at once.

The story `matrix` leaves what it found, one number for each cell, in `matrix.json`; `benchmarks/engine_matrix.py` makes the table of it.
"""

from __future__ import annotations

import json
import os
import random
import warnings
from functools import cache, partial
from pathlib import Path

import rank_worker
import torch
import torch.distributed as dist
from rank_reference import batches_of, reference, refused
from torch import nn
from torch.distributed._composable.replicate import replicate
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

warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

TOLERANCE = 1e-12


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


# -- the rows: every way of wrapping that the Stepper says it understands -----------------------------------------------


class Case:
    """A wrapped model with its optimizer, and which data this rank reads, of how many."""

    def __init__(self, model, reader, readers, prepare=None):
        self.model, self.reader, self.readers, self.prepare = model, reader, readers, prepare

    def stepper(self, kind, lr, **options):
        optimizer = kind(self.model.parameters(), lr=lr)
        if self.prepare is not None:
            self.model, optimizer = self.prepare(self.model, optimizer)
        return fallline.Stepper(self.model, optimizer, **options)

    def whole(self):
        return [p.full_tensor() if isinstance(p, DTensor) else p for p in self.model.parameters()]


@cache  # a process has one number of ranks
def flat_mesh(world):
    return init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))


@cache
def square_mesh(world):
    rows = 2 if world >= 4 else 1
    return init_device_mesh("cpu", (rows, world // rows), mesh_dim_names=("dp", "tp"))


def ddp(rank, world, seed):
    return Case(DistributedDataParallel(Wide(seed)), rank, world)


def fsdp(rank, world, seed, factor=None):
    return Case(shard(Wide(seed), flat_mesh(world), factor), rank, world)


def tp(rank, world, seed):
    return Case(tensor_parallel(Wide(seed), flat_mesh(world)), 0, 1)


def hsdp(rank, world, seed):
    return Case(shard(Wide(seed), square_mesh(world)), rank, world)


def fsdp_and_tp(rank, world, seed, factor=None):
    mesh = square_mesh(world)
    model = shard(tensor_parallel(Wide(seed), mesh["tp"]), mesh["dp"], factor)
    return Case(model, mesh["dp"].get_local_rank(), mesh["dp"].size())


def ddp_and_tp(rank, world, seed):
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_fsdp

    mesh = square_mesh(world)
    model = replicate_fsdp(tensor_parallel(Wide(seed), mesh["tp"]), mesh=mesh["dp"])
    return Case(model, mesh["dp"].get_local_rank(), mesh["dp"].size())


def composable(rank, world, seed):
    return Case(replicate(Wide(seed)), rank, world)


def composable_on_fsdp(rank, world, seed):
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_fsdp

    return Case(replicate_fsdp(Wide(seed), mesh=flat_mesh(world)), rank, world)


def torchrun(rank, world):
    """The environment that a launcher would have made, for frameworks that read it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = "29531"  # nobody listens: the process group is there already


@cache
def accelerator(rank, world):
    from accelerate import Accelerator

    torchrun(rank, world)
    return Accelerator(cpu=True)


@cache
def launched_fabric(rank, world):
    from lightning.fabric import Fabric

    torchrun(rank, world)
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp")
    fabric.launch()
    return fabric


def accelerate(rank, world, seed):
    return Case(Wide(seed), rank, world, accelerator(rank, world).prepare)


def fabric(rank, world, seed):
    return Case(Wide(seed), rank, world, launched_fabric(rank, world).setup)


SUMMED = "FSDP2, gradients summed", "FSDP2 x TP, gradients summed"
ROWS = {
    "DDP": ddp,
    "FSDP2": fsdp,
    SUMMED[0]: partial(fsdp, factor=1.0),
    "TP": tp,
    "composable replicate": composable,
    "replicate on FSDP2": composable_on_fsdp,
    "Accelerate": accelerate,
    "Fabric": fabric,
    "HSDP": hsdp,
    "FSDP2 x TP": fsdp_and_tp,
    SUMMED[1]: partial(fsdp_and_tp, factor=1.0),
    "DDP x TP": ddp_and_tp,
}
ON_A_MESH = list(ROWS)[-4:]  # of two dimensions, which needs four ranks


# -- the columns: each gives the distance from one process, on any rank --------------------------------------------------


def step(case, stepper, x, y, weighted):
    with stepper.micro_batch() as micro:
        if weighted:
            micro.backward((case.model(x) - y).square().sum(), weight=y.numel())
        else:
            micro.backward(nn.functional.mse_loss(case.model(x), y))


def anywhere(value: float) -> float:
    """The largest of all ranks."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def distance(parameters, wanted) -> float:
    pairs = zip(parameters, wanted, strict=True)
    return anywhere(max(float((a - b).detach().abs().max()) for a, b in pairs))


def window(build, rank, world, folder, *, accumulate, weighted, clip):
    """Five batches for each rank, in windows of so many."""
    case, want = build(rank, world, 3), Wide(3)
    batches = batches_of(random.Random(accumulate), [5] * case.readers)
    stepper = case.stepper(torch.optim.SGD, 0.1, accumulate=accumulate, clip_norm=clip)
    for x, y in stepper.over(batches[case.reader]):
        step(case, stepper, x, y, weighted)
    updates = reference(want, batches, accumulate, weighted, clip)
    assert stepper.updates == updates, (stepper.updates, updates)
    true = torch.stack([p.grad.norm() for p in want.parameters()]).norm()
    norm, coefficient = stepper.last.norm, stepper.last.coefficient if clip else 1.0
    assert not clip or stepper.last.clipped
    assert anywhere(norm) == norm == -anywhere(-norm), "norms differ between ranks"
    return max(distance(case.whole(), want.parameters()), abs(norm * coefficient - float(true)))


def nan_on_one_rank(build, rank, world, folder):
    """The last rank's batch turns bad, and no rank applies the update."""
    case = build(rank, world, 3)
    stepper = case.stepper(torch.optim.SGD, 0.1, accumulate=3)
    before = [p.detach().clone() for p in case.whole()]
    x, y = batches_of(random.Random(3), [1] * case.readers)[case.reader][0]
    bad = x.clone()
    bad[0, 0] = torch.nan if rank == world - 1 or case.readers == 1 else bad[0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs in (x, bad, x):
            step(case, stepper, inputs, y, False)
    assert stepper.last.skipped
    return distance(case.whole(), before)


SAMPLES = torch.randn(46, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TOGETHER = 16  # samples of an update, on any number of ranks
UPDATES = 6  # of which three are in the first epoch


def in_order(case_of, rank, world, where, stop):
    """Train until `stop` updates, from what is saved there if there is something, and save."""
    case = case_of(rank, world, 7)
    accumulate = TOGETHER // (2 * case.readers)
    stepper = case.stepper(torch.optim.AdamW, 0.01, accumulate=accumulate, clip_norm=0.05)
    order = fallline.Order(len(SAMPLES), 2, seed=5, rank=case.reader, world_size=case.readers)
    dataset = torch.utils.data.TensorDataset(SAMPLES[:, :3], SAMPLES[:, 3:])
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=order)
    loaded = fallline.load_checkpoint(where, stepper=stepper)
    assert (loaded is not None) == where.exists()
    while True:
        for inputs, targets in stepper.over(loader):
            step(case, stepper, inputs, targets, True)
            if stepper.updated and stepper.updates >= stop:
                fallline.save_checkpoint(where, stepper=stepper)
                for update in range(stop):
                    assert stepper.samples_of(update) == (update // 3, windows()[update])
                return [p.detach().clone() for p in case.whole()]


def windows():
    order = fallline.Order(len(SAMPLES), TOGETHER, seed=5)
    return [list(b) for epoch in range(2) for b in (order.set_epoch(epoch), list(order))[1]]


def alone():
    """One process, all of a window at once, in the same order."""
    model = Wide(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for indices in windows():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(SAMPLES[indices, :3]), SAMPLES[indices, 3:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return list(model.parameters())


def resume(build, rank, world, folder):
    """Stopped in mid-epoch and continued: the bits of the straight run."""
    straight = in_order(build, rank, world, folder / "straight", UPDATES)
    in_order(build, rank, world, folder / "stopped", 2)
    resumed = in_order(build, rank, world, folder / "stopped", UPDATES)
    assert all(map(torch.equal, straight, resumed)), "not the same bits"
    return distance(resumed, alone())


def stopped(build, rank, world, folder):
    """For a story on a different number of ranks to continue."""
    in_order(build, rank, world, folder / "stopped", 2)
    return 0.0


def continued(build, rank, world, folder):
    """What a story on a different number of ranks has begun."""
    return distance(in_order(build, rank, world, folder / "stopped", UPDATES), alone())


COLUMNS = {
    "plain": partial(window, accumulate=1, weighted=False, clip=None),
    "tokens and remainder": partial(window, accumulate=2, weighted=True, clip=None),
    "clip": partial(window, accumulate=3, weighted=False, clip=0.05),
    "NaN on one rank": nan_on_one_rank,
    "resume": resume,
}


def cells(columns, rank, world, folder) -> None:
    """Every wrapper does what one process does. What was measured is added to `matrix.json`."""
    result = folder.parent / "matrix.json"
    found: dict[str, dict[str, float]] = json.loads(result.read_text()) if result.exists() else {}
    new: dict[str, dict[str, float]] = {}
    for name in found or [n for n in ROWS if world >= 4 or n not in ON_A_MESH]:
        for column, (cell, place) in columns.items():
            if name in SUMMED and cell in (resume, stopped, continued):
                continue  # who divides is not a question of saving
            where = folder.parent / "matrix" / name.replace(" ", "-") / place
            try:
                value = cell(ROWS[name], rank, world, where)
                assert value < TOLERANCE, value
            except Exception as error:
                raise AssertionError(f"{name}, {column}") from error
            new.setdefault(name, {})[column] = value
    dist.barrier()  # everybody has read it
    if rank == 0:
        merged = {name: found.get(name, {}) | new.get(name, {}) for name in found or new}
        result.write_text(json.dumps(merged))


def matrix(rank: int, world: int, folder: Path) -> None:
    here = {name: (cell, name.replace(" ", "-")) for name, cell in COLUMNS.items()}
    cells({**here, "begun": (stopped, "fewer")}, rank, world, folder)


def matrix_on_half(rank: int, world: int, folder: Path) -> None:
    columns = {"resume on half the ranks": (continued, "fewer"), "begun": (stopped, "more")}
    cells(columns, rank, world, folder)


def matrix_on_twice(rank: int, world: int, folder: Path) -> None:
    cells({"resume on twice the ranks": (continued, "more")}, rank, world, folder)


def nan_in_one_shard(rank: int, world: int, folder: Path) -> None:
    """A NaN that only one tensor-parallel shard holds is everybody's: the whole norm is not finite anywhere."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    model = shard(tensor_parallel(Wide(1), mesh["tp"]), mesh["dp"])
    model(torch.ones(2, 3, dtype=torch.float64)).square().mean().backward()
    if rank == world - 1:
        model.up.weight.grad.to_local().fill_(torch.nan)
    norm = fallline.clip_grad_norm_(model.parameters(), 1.0)
    assert not torch.isfinite(norm), "this rank did not hear of the NaN"


def unmovable(rank: int, world: int, folder: Path) -> None:
    """An order that depends on the number of ranks cannot be carried over, and that is said on every rank."""
    case = ddp(rank, world, 7)
    stepper = case.stepper(torch.optim.SGD, 0.1)
    if folder.exists():
        refused(
            "saved by 2 ranks and is loaded by 4",
            lambda: fallline.load_checkpoint(folder, stepper=stepper),
        )
        return
    dataset = torch.utils.data.TensorDataset(SAMPLES[:, :3], SAMPLES[:, 3:])
    sampler = torch.utils.data.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    for inputs, targets in stepper.over(loader):
        step(case, stepper, inputs, targets, False)
        if stepper.updates == 2:
            break
    fallline.save_checkpoint(folder, stepper=stepper)


def refusals(rank: int, world: int, folder: Path) -> None:
    """What nobody can know is refused in words; what the user says is believed."""

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
    # DDP with a static graph must synchronise its first backward pass.
    ddp = DistributedDataParallel(Wide(0), static_graph=True)
    static = fallline.Stepper(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), accumulate=2)
    refused("leave static_graph out", lambda: static.micro_batch().__enter__())
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
    flat = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    split = tensor_parallel(Wide(0), flat["tp"])
    refused(
        "replaces tensor-parallel", lambda: stepper_of(replicate(split, device_mesh=flat["dp"]))
    )
    split = DistributedDataParallel(tensor_parallel(Wide(0), flat["tp"]), device_mesh=flat["dp"])
    refused("hides that they are shards", lambda: stepper_of(split))


STORIES = {
    story.__name__: story
    for story in (
        *(matrix, matrix_on_half, matrix_on_twice),
        *(nan_in_one_shard, unmovable, refusals),
    )
}


def prepare(names: list[str]) -> None:
    rank_worker.prepare(["frameworks"] if "matrix" in names else [])


run = partial(rank_worker.run, stories=STORIES)
