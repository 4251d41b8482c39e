"""What claims of distributed training and of the device's memory rest on (`claims/distributed-notes.md`)."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.triage.behaviours import _alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def _documents(what: Any, *phrases: str) -> None:
    """What is installed says so itself."""
    said = " ".join((inspect.getdoc(what) or "").split())
    assert all(phrase in said for phrase in phrases), said


def ddp_takes_a_model_on_its_device() -> None:
    def body() -> None:
        model = DistributedDataParallel(nn.Linear(2, 1))
        assert model.device_ids is None
        model(torch.ones(1, 2)).sum().backward()

    _alone(body)


def a_sampler_gives_each_rank_its_part() -> None:
    from torch.utils.data import DistributedSampler

    parts = [set(DistributedSampler(range(8), num_replicas=2, rank=r)) for r in range(2)]  # type: ignore[arg-type]
    assert parts[0].isdisjoint(parts[1]) and len(parts[0]) == 4


def ddp_buckets_are_25_mb() -> None:
    def body() -> None:
        assert DistributedDataParallel(nn.Linear(2, 1)).bucket_bytes_cap == 25 * 1024 * 1024

    _alone(body)


def ddp_documents_static_graph() -> None:
    _documents(
        DistributedDataParallel,
        "static_graph",
        "Reentrant backwards",
        "Activation checkpointing multiple times",
    )


def ddp_comm_hooks_compress() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    def body() -> None:
        model = DistributedDataParallel(nn.Linear(2, 1))
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        model(torch.full((1, 2), 1.0001)).sum().backward()
        assert model.module.weight.grad.tolist() == [[1.0, 1.0]]  # rounded to 16 bits

    _alone(body)
    defaults = inspect.signature(PowerSGDState.__init__).parameters
    assert defaults["start_powerSGD_iter"].default == 1000
    assert defaults["use_error_feedback"].default is True


def two_ddp_modules_work() -> None:
    def body() -> None:
        one, two = (DistributedDataParallel(nn.Linear(2, 2)) for _ in range(2))
        two(one(torch.ones(1, 2)).detach()).sum().backward()
        assert one.module.weight.grad is None and two.module.weight.grad is not None

    _alone(body)


def module_inside_ddp_is_not_reduced() -> None:
    def body() -> None:
        model, called = DistributedDataParallel(nn.Linear(2, 1)), []
        prepare = model._pre_forward
        model._pre_forward = lambda *a, **k: (called.append(1), prepare(*a, **k))[1]
        model.module(torch.ones(1, 2))
        assert not called
        model(torch.ones(1, 2))
        assert called

    _alone(body)


def ddp_ranks_hold_the_same_weights() -> None:
    _documents(DistributedDataParallel, "are broadcast")
    from torch.serialization import load

    _documents(load, "map_location", "they were saved from")


def ddp_optimizer_splits_graphs() -> None:
    from torch._dynamo import config
    from torch._dynamo.backends.distributed import DDPOptimizer

    assert config.optimize_ddp in (True, "ddp_optimizer")
    _documents(DDPOptimizer, "bucket")


def to_empty_holds_garbage() -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    _documents(nn.Module.to_empty, "without copying storage")
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.weight.isfinite().all() and layer.weight.abs().max() <= 1


def a_shard_group_is_gathered_at_once() -> None:
    from torch.distributed.fsdp import fully_shard

    _documents(
        fully_shard, "bottom-up", "not* call :meth:`fully_shard` only on the topmost root module"
    )


def fsdp1_documents_orig_params() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    _documents(FullyShardedDataParallel, "use_orig_params", "original parameters")


def fsdp1_documents_strategies() -> None:
    from torch.distributed.fsdp import ShardingStrategy

    _documents(
        ShardingStrategy,
        "SHARD_GRAD_OP",
        "HYBRID_SHARD",
        "within a node, and replicate parameters across nodes",
    )


def full_tensor_is_the_whole_weight() -> None:
    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

        layer = nn.Linear(2, 3)
        before = layer.weight.detach().clone()
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
        assert torch.equal(layer.weight.full_tensor(), before)  # type: ignore[operator]
        assert (
            "writeback" in inspect.signature(FullyShardedDataParallel.summon_full_params).parameters
        )

    _alone(body)


def colwise_then_rowwise_needs_one_sum() -> None:
    up, down, x = torch.randn(4, 3), torch.randn(2, 4), torch.randn(5, 3)
    whole = (x @ up.T).relu() @ down.T
    parts = [(x @ up[r].T).relu() @ down[:, r].T for r in (slice(0, 2), slice(2, 4))]
    assert torch.allclose(sum(parts), whole, atol=1e-5)  # type: ignore[arg-type]


def sequence_parallel_shards_the_activations() -> None:
    from torch.distributed.tensor.parallel import SequenceParallel, loss_parallel

    _documents(SequenceParallel, "sequence dimension", "LayerNorm")
    _documents(loss_parallel, "sharded on the class dimension")


def pipeline_bubble_share() -> None:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    assert round(3 / (4 + 3), 2) == 0.43 and round(3 / (16 + 3), 2) == 0.16
    assert Schedule1F1B is not ScheduleGPipe


def dcp_becomes_one_file() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    with tempfile.TemporaryDirectory() as home:
        dcp.save({"model": {"w": torch.arange(3.0)}}, checkpoint_id=f"{home}/dcp", no_dist=True)
        dcp_to_torch_save(f"{home}/dcp", f"{home}/one.pt")
        assert torch.load(f"{home}/one.pt")["model"]["w"].tolist() == [0, 1, 2]


def torchrun_documents_restarts() -> None:
    from torch.distributed import run

    said = " ".join((run.__doc__ or "").split())
    assert "all existing workers are stopped" in said or "re-rendezvous" in said
    assert "checkpoint" in said


def new_group_is_for_all_ranks() -> None:
    _documents(dist.new_group, "requires that all processes in the main group", "same order")


def objects_are_broadcast_in_place() -> None:
    def body() -> None:
        box = ["run"]
        dist.broadcast_object_list(box, src=0)
        assert box == ["run"]

    _alone(body)
    _documents(dist.broadcast_object_list, "lists of equal sizes", "torch.cuda.set_device")


def all_gather_needs_known_sizes() -> None:
    _documents(dist.all_gather, "correctly-sized tensors", "uneven sized tensors are supported")
    _documents(dist.reduce_scatter, "Reduces, then scatters")


def functional_collectives_have_gradients() -> None:
    def body() -> None:
        from torch.distributed._functional_collectives import all_gather_single_autograd

        x = torch.ones(2, requires_grad=True)
        plain = [torch.zeros(2)]
        dist.all_gather(plain, x.detach())
        assert not plain[0].requires_grad
        all_gather_single_autograd(x, 0, dist.group.WORLD).sum().backward()
        assert x.grad is not None

    _alone(body)


def record_stream_is_documented() -> None:
    _documents(torch.Tensor.record_stream, "Marks the tensor as having been used by this stream")


def the_loader_pins_in_the_parent() -> None:
    from torch.utils.data import _utils

    assert callable(_utils.pin_memory._pin_memory_loop)
    _documents(torch.utils.data.DataLoader, "pin_memory")


def the_allocator_reads_its_options() -> None:
    home = Path(torch.__file__).parent / "include" / "c10"
    read = (home / "core" / "AllocatorConfig.h").read_text()
    assert "expandable_segments" in read and "max_split_size" in read


def the_allocator_keeps_what_it_has() -> None:
    _documents(torch.cuda.memory_reserved, "caching allocator")
    _documents(torch.cuda.memory_allocated, "occupied by tensors")


def memory_history_can_be_recorded() -> None:
    given = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert "enabled" in given or "args" in given
    assert callable(torch.cuda.memory._dump_snapshot)
