"""Errors of data, checkpoints, devices, compile and one process of several, provoked. A function's name is its claim's."""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

Lin = nn.Linear
ones, randn = torch.ones, torch.randn


# --- data ----------------------------------------------------------------------------------------------------------------------------------
class _Ragged(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return ones(i + 1)


class _NoneSet(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return None


class _Dies(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        os._exit(3)


class _Raises(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        raise KeyError("image")


def collate_sizes() -> None:
    next(iter(DataLoader(_Ragged(), batch_size=4)))


def collate_none() -> None:
    next(iter(DataLoader(_NoneSet(), batch_size=2)))


def loader_empty_dataset() -> None:
    DataLoader(TensorDataset(ones(0, 2)), shuffle=True)


def loader_sampler_and_shuffle() -> None:
    d = TensorDataset(ones(4, 2))
    DataLoader(d, shuffle=True, sampler=torch.utils.data.SequentialSampler(d))


def loader_prefetch() -> None:
    DataLoader(TensorDataset(ones(4, 2)), prefetch_factor=2)


def loader_persistent() -> None:
    DataLoader(TensorDataset(ones(4, 2)), persistent_workers=True)


def loader_lambda_spawn() -> None:
    next(
        iter(
            DataLoader(
                TensorDataset(ones(4, 2)),
                num_workers=1,
                collate_fn=lambda b: b,
                multiprocessing_context="spawn",
            )
        )
    )


def worker_raises() -> None:
    next(iter(DataLoader(_Raises(), num_workers=1)))


def workers_die() -> None:
    next(iter(DataLoader(_Dies(), num_workers=1)))


def too_many_workers() -> None:
    DataLoader(TensorDataset(ones(4, 2)), num_workers=4096)


def iterable_shuffle() -> None:
    class It(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    DataLoader(It(), shuffle=True)


def random_split_sizes() -> None:
    torch.utils.data.random_split(TensorDataset(ones(4, 2)), [3, 3])


def weighted_sampler() -> None:
    torch.utils.data.WeightedRandomSampler([0.5, 0.5], num_samples=0)


# --- checkpoints -----------------------------------------------------------------------------------------------------------------------------
def module_prefix() -> None:
    Lin(2, 2).load_state_dict({f"module.{k}": v for k, v in Lin(2, 2).state_dict().items()})


def module_prefix_missing() -> None:
    nn.DataParallel(Lin(2, 2)).load_state_dict(Lin(2, 2).state_dict())


def compiled_keys() -> None:
    Lin(2, 2).load_state_dict(torch.compile(Lin(2, 2)).state_dict())


def size_mismatch() -> None:
    Lin(2, 7).load_state_dict(Lin(2, 1000).state_dict())


def missing_keys() -> None:
    nn.Sequential(Lin(2, 2), Lin(2, 2)).load_state_dict(nn.Sequential(Lin(2, 2)).state_dict())


def weights_only() -> None:
    buffer = io.BytesIO()
    torch.save({"args": argparse.Namespace(a=1)}, buffer)
    buffer.seek(0)
    torch.load(buffer)


def atomic_save() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.pt"
        torch.save(Lin(20, 20).state_dict(), file)
        file.write_bytes(file.read_bytes()[:300])
        torch.load(file)


def load_cuda_on_cpu() -> None:
    """A file that says of its tensors that they were on a GPU."""
    buffer = io.BytesIO()
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    try:
        torch.save(ones(1), buffer)
    finally:
        torch.serialization.location_tag = tag
    buffer.seek(0)
    torch.load(buffer)


def load_not_a_state_dict() -> None:
    Lin(2, 2).load_state_dict(Lin(2, 2))


def pickle_lambda() -> None:
    torch.save({"f": lambda x: x}, io.BytesIO())


def parent_directory() -> None:
    torch.save({}, "/nowhere/at/all/model.pt")


def meta_tensor_copy() -> None:
    Lin(2, 2, device="meta").to("cpu")


def meta_tensor_item() -> None:
    ones(1, device="meta").item()


# --- devices -------------------------------------------------------------------------------------------------------------------------------
def no_cuda_build() -> None:
    ones(1).cuda()


def numpy_from_cuda() -> None:
    ones(1, device="meta").numpy()


def deterministic_missing() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x = ones(2, 2, requires_grad=True)
        torch.kthvalue(x, 1)
        torch.nn.functional.max_unpool2d(
            ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.long), 2
        )
        torch.Tensor.put_(ones(4), torch.tensor([0]), ones(1))
    finally:
        torch.use_deterministic_algorithms(False)


def out_of_host_memory() -> None:
    torch.empty(2**50)


# --- compile ----------------------------------------------------------------------------------------------------------------------------------
def recompile_sizes() -> None:
    import logging

    torch._dynamo.reset()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("torch._dynamo").addHandler(handler)
    f = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    try:
        for n in range(2, 14):
            f(ones(n))
    finally:
        logging.getLogger("torch._dynamo").removeHandler(handler)
    raise RuntimeError(stream.getvalue())


def compile_fullgraph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    torch.compile(f, backend="eager", fullgraph=True)(ones(2))


def compile_data_dependent() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    torch.compile(f, backend="eager", fullgraph=True)(ones(2))


def sdpa_backend() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = ones(1, 1, 4, 4)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        F.scaled_dot_product_attention(q, q, q)


# --- distributed, one process -------------------------------------------------------------------------------------------------------------
def group_not_initialised() -> None:
    torch.distributed.get_rank() if False else torch.distributed.barrier()


def ddp_without_group() -> None:
    nn.parallel.DistributedDataParallel(Lin(2, 2))


def rank_not_set() -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    torch.distributed.init_process_group("gloo")


def nccl_missing() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    try:
        torch.distributed.init_process_group("nccl")
    finally:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)


def _alone(body: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/s", rank=0, world_size=1
        )
        try:
            body()
        finally:
            torch.distributed.destroy_process_group()


def group_twice() -> None:
    def body() -> None:
        torch.distributed.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:29555", rank=0, world_size=1
        )

    _alone(body)


def ddp_no_grad_params() -> None:
    _alone(lambda: nn.parallel.DistributedDataParallel(Lin(2, 2).requires_grad_(False)))


def find_unused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Lin(2, 2), Lin(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x)

    def body() -> None:
        model = nn.parallel.DistributedDataParallel(Two())
        for _ in range(2):
            model(ones(1, 2)).sum().backward()

    _alone(body)


def invalid_rank() -> None:
    _alone(lambda: torch.distributed.broadcast(ones(1), src=3))


def new_group_rank() -> None:
    _alone(lambda: torch.distributed.new_group([0, 5]))


def distributed_sampler_rank() -> None:
    torch.utils.data.DistributedSampler(TensorDataset(ones(4, 2)), num_replicas=2, rank=5)


def ddp_attribute() -> None:
    def body() -> None:
        getattr(nn.parallel.DistributedDataParallel(Lin(2, 2)), "in_" + "features")

    _alone(body)
