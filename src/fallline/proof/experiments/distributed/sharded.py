"""FSDP2 and DTensor: one norm for all shards, types of parameters and of sums; and BatchNorm, which sees its own rank only."""

from __future__ import annotations

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, mse, network
from fallline.proof.ranks import on_ranks


@experiment(
    "dtensor-norm-is-global",
    claim="torch's clip_grad_norm_ on FSDP2 parameters gives a DTensor of the whole gradient's norm, the same on every rank; its local part, or .item() without full_tensor(), is the shard's.",
    taught="With FSDP every rank has to sum the squared norms by hand.",
)
def dtensor_norm_is_global() -> Measured:
    seen = on_ranks(_norms)
    (whole0, local0), (whole1, local1) = seen
    together = (local0**2 + local1**2) ** 0.5
    return Measured(
        sides={
            "full_tensor()": {"rank 0": whole0, "rank 1": whole1},
            "of the shards": {"rank 0": local0, "rank 1": local1},
        },
        conclusion=f"both ranks see {whole0:.4f} as the whole norm; their shards have {local0:.4f} and {local1:.4f}, together {together:.4f}",
        holds={
            "the same on both ranks": whole0 == whole1,
            "it is that of all shards": abs(together / whole0 - 1) < 1e-4,
            "no shard has it": max(local0, local1) < 0.999 * whole0,
        },
    )


def _norms(rank: int, world: int) -> tuple[float, float]:
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    x, y = batches(rank, 1)[0]
    mse(model(x), y).backward()
    shards = [p.grad.to_local() for p in model.parameters() if isinstance(p.grad, DTensor)]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert isinstance(norm, DTensor)
    return float(norm.full_tensor()), float(torch.nn.utils.get_total_norm(shards))


@experiment(
    "fsdp2-computes-narrow-and-keeps-wide",
    claim="With MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32) FSDP2 computes in bfloat16 and keeps parameters and gradients in float32; gradients that are summed over ranks in bfloat16 are coarser.",
)
def fsdp2_computes_narrow_and_keeps_wide() -> Measured:
    wide, narrow = (on_ranks(partial(_types, reduce=reduce))[0] for reduce in (torch.float32, torch.bfloat16))  # fmt: skip
    exact = on_ranks(partial(_types, reduce=None))[0]
    apart = [float((g - exact[3]).norm() / exact[3].norm()) for g in (wide[3], narrow[3])]
    return Measured(
        sides={
            "reduced in float32": {"computed in": wide[0], "parameters": wide[1], "gradients": wide[2], "error of the gradient": apart[0]},
            "reduced in bfloat16": {"computed in": narrow[0], "parameters": narrow[1], "gradients": narrow[2], "error of the gradient": apart[1]},
        },
        conclusion=f"computed in {wide[0]}, kept in {wide[1]}; against a float32 run the gradient is {apart[0]:.4f} off when reduced in float32 and {apart[1]:.4f} in bfloat16",
        holds={
            "the forward is narrow": wide[0] == "bfloat16",
            "parameters and gradients stay wide": wide[1] == wide[2] == "float32",
            "summing in bfloat16 is no better": apart[1] >= apart[0],
        },
    )  # fmt: skip


def _types(
    rank: int, world: int, *, reduce: torch.dtype | None
) -> tuple[str, str, str, torch.Tensor]:
    model = network()
    narrow = None if reduce is None else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=reduce)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)), mp_policy=policy)
    x, y = batches(rank, 1)[0]
    out = model(x)
    mse(out.float(), y).backward()
    first = next(model.parameters())
    assert isinstance(first.grad, DTensor)
    names = [str(t.dtype).removeprefix("torch.") for t in (out, first, first.grad)]
    return names[0], names[1], names[2], first.grad.full_tensor()


@experiment(
    "batchnorm-sees-one-rank",
    claim="Under DDP each rank normalises with the statistics of its own part of the batch; only SyncBatchNorm, or one process with the whole batch, uses those of all.",
    taught="DDP synchronises BatchNorm.",
)
def batchnorm_sees_one_rank() -> Measured:
    torch.manual_seed(0)
    batch = torch.randn(8, 1) + torch.tensor([0.0] * 4 + [4.0] * 4)[:, None]
    norm = torch.nn.BatchNorm1d(1, affine=False)
    whole = norm(batch)
    halves = torch.cat([norm(batch[:4]), norm(batch[4:])])
    gap = [float(out[4:].mean() - out[:4].mean()) for out in (whole, halves)]
    return Measured(
        sides={
            "statistics of the whole batch": {"difference of the two halves after it": gap[0]},
            "of each rank's half": {"difference of the two halves after it": gap[1]},
        },
        conclusion=f"two ranks whose samples differ by 4: normalised together their means are {gap[0]:.2f} apart, each by itself {abs(gap[1]):.2f}: what sets the ranks' data apart is gone",
        holds={"together the difference stays": gap[0] > 1, "apart it is gone": abs(gap[1]) < 1e-5},
    )
