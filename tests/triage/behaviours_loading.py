"""What claims of compiling, profiling and loading rest on (`claims/compile-and-data-notes.md`)."""

from __future__ import annotations

import inspect
import io
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from tests.triage.behaviours_distributed import _documents
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler
from torch.utils.data._utils.worker import get_worker_info


def dynamo_recompiles_for_what_it_guards() -> None:
    counter = CompileCounter()
    torch._dynamo.reset()

    def scaled(x: torch.Tensor, by: str) -> torch.Tensor:
        return x * len(by)

    f = torch.compile(scaled, backend=counter, dynamic=None)
    for by in ("a", "bb", "ccc"):
        f(torch.ones(3), by)
    assert counter.frame_count == 3
    torch._dynamo.reset()
    counter.clear()
    g = torch.compile(lambda x: x * 2, backend=counter)
    for size in (3, 5, 7, 9):
        g(torch.ones(size))
    assert counter.frame_count == 2  # the second size makes it dynamic
    assert torch._dynamo.config.recompile_limit == 8
    torch._dynamo.reset()


def explain_counts_graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    assert torch._dynamo.explain(broken)(torch.ones(2)).graph_break_count == 1
    torch._dynamo.reset()


def dynamo_breaks_at_a_branch_on_values() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(branch, backend="eager", fullgraph=True)(torch.ones(2))
    chosen = torch.compile(
        lambda x: torch.where(x.sum() > 0, x + 1, x - 1), backend="eager", fullgraph=True
    )
    assert chosen(torch.ones(2)).tolist() == [2, 2]
    torch._dynamo.reset()


def inductor_caches_on_disk() -> None:
    import torch._inductor.config
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert torch._inductor.config.fx_graph_cache
    assert callable(torch.compiler.save_cache_artifacts)
    assert "torchinductor" in cache_dir() or "TORCHINDUCTOR_CACHE_DIR" in inspect.getsource(
        cache_dir
    )


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x).relu()
        return out


def equal_layers_share_one_compilation() -> None:
    counter = CompileCounter()
    torch._dynamo.reset()
    model = nn.Sequential(*(_Block() for _ in range(6)))
    for layer in model:
        layer.compile(backend=counter)
    model(torch.ones(2, 3, requires_grad=True))
    assert counter.frame_count == 1
    assert all(not key.startswith("_orig_mod") for key in model.state_dict())
    torch._dynamo.reset()


def a_tensor_rate_is_not_compiled_in() -> None:
    for rate, compilations in ((0.1, 2), (torch.tensor(0.1), 1)):
        counter = CompileCounter()
        torch._dynamo.reset()
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=rate)
        weight.grad = torch.ones(3)
        step = torch.compile(optimizer.step, backend=counter, dynamic=False)
        step()
        if isinstance(rate, float):
            optimizer.param_groups[0]["lr"] = 0.05
        else:
            rate.fill_(0.05)
        step()
        assert counter.frame_count == compilations
        assert torch.allclose(weight.detach(), torch.full((3,), 0.85))
    torch._dynamo.reset()


def inductor_draws_its_own_numbers() -> None:
    import torch._inductor.config

    assert torch._inductor.config.fallback_random is False


def the_profiler_has_a_schedule() -> None:
    from torch.profiler import ProfilerAction, schedule

    plan = schedule(wait=1, warmup=1, active=3, repeat=1)
    actions = [plan(n) for n in range(6)]
    assert actions[0] == ProfilerAction.NONE and actions[1] == ProfilerAction.WARMUP
    assert actions[2] == actions[3] == ProfilerAction.RECORD
    assert actions[4] == ProfilerAction.RECORD_AND_SAVE and actions[5] == ProfilerAction.NONE


def utilisation_is_documented() -> None:
    _documents(
        torch.cuda.utilization, "percent of time", "one or more kernels was executing on the GPU"
    )


def threads_can_be_set() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def cpu_autocast_is_bfloat16() -> None:
    layer = nn.Linear(2, 2)
    with torch.autocast("cpu"):
        out = layer(torch.ones(1, 2))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def item_waits_for_the_number() -> None:
    total = torch.zeros(())
    for _ in range(3):
        total += torch.ones((), requires_grad=True).detach()
    assert total.item() == 3 and not total.requires_grad


def communication_is_not_free() -> None:
    layer = nn.Linear(10, 10)
    layer(torch.ones(1, 10)).sum().backward()
    sent = sum(p.grad.nbytes for p in layer.parameters() if p.grad is not None)
    assert sent == 4 * sum(p.numel() for p in layer.parameters())


class _Stream(IterableDataset[int]):
    def __iter__(self) -> object:  # type: ignore[override]
        return iter(range(3))


class _Squares(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> int:
        return at * at


def an_iterable_dataset_has_no_index() -> None:
    with pytest.raises(TypeError):
        len(_Stream())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(_Stream(), shuffle=True)


def a_batch_sampler_yields_lists() -> None:
    loader = DataLoader(_Squares(), batch_sampler=[[0, 3], [1]])
    assert [b.tolist() for b in loader] == [[0, 9], [1]]
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(_Squares(), batch_sampler=[[0]], batch_size=2)


def a_sampler_excludes_shuffle() -> None:
    with pytest.raises(ValueError, match="mutually exclusive with shuffle"):
        DataLoader(_Squares(), sampler=WeightedRandomSampler([1.0] * 4, 4), shuffle=True)
    drawn = list(WeightedRandomSampler([1.0, 0.0, 0.0, 0.0], 4))
    assert drawn == [0, 0, 0, 0]


def workers_start_anew_each_epoch() -> None:
    given = inspect.signature(DataLoader.__init__).parameters
    assert given["persistent_workers"].default is False
    assert DataLoader(_Squares(), num_workers=1).prefetch_factor == 2


def workers_return_cpu_tensors() -> None:
    assert all(b.device.type == "cpu" for b in DataLoader(_Squares()))


def a_lambda_cannot_be_pickled() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(lambda batch: batch)


def a_shared_tensor_is_the_same_memory() -> None:
    shared = torch.zeros(2).share_memory_()
    from multiprocessing.reduction import ForkingPickler

    buffer = ForkingPickler.dumps(shared)
    other = pickle.loads(buffer)
    other.fill_(1)
    assert shared.tolist() == [1, 1]


def workers_pass_batches_through_shared_memory() -> None:
    import torch.multiprocessing as mp

    assert mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    assert "file_system" in mp.get_all_sharing_strategies()


class _Seeds(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> int:
        info = get_worker_info()
        assert info is not None
        return info.seed - info.id


def worker_seeds_are_base_plus_id() -> None:
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(_Seeds(), num_workers=2, generator=generator)
    epochs = [{b.item() for b in loader} for _ in range(2)]
    assert len(epochs[0]) == len(epochs[1]) == 1 and epochs[0] != epochs[1]


def non_reentrant_checkpointing_does_more() -> None:
    import warnings

    from torch.utils.checkpoint import checkpoint

    for reentrant, trained in ((True, False), (False, True)):
        layer = nn.Linear(2, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = checkpoint(layer, torch.ones(1, 2), use_reentrant=reentrant)
        assert out.requires_grad is trained


def checkpointing_updates_batchnorm_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    norm = nn.BatchNorm1d(1)
    x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    checkpoint(norm, x, use_reentrant=False).sum().backward()
    assert norm.num_batches_tracked is not None and norm.num_batches_tracked.item() == 2
    assert norm.running_mean is not None
    assert norm.running_mean.item() == pytest.approx(2 * (1 - 0.9**2))


def only_activations_grow_with_the_batch() -> None:
    def saved(rows: int) -> int:
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (sizes.append(t.numel() if t.shape[:1] == (rows,) else 0), t)[1], lambda t: t
        ):
            nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))(torch.randn(rows, 5)).sum()
        return sum(sizes)

    assert saved(40) == 4 * saved(10)


def a_slice_saves_its_whole_storage() -> None:
    def size(tensor: torch.Tensor) -> int:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return len(buffer.getvalue())

    x = torch.zeros(100_000)
    assert size(x[:10]) > 400_000 > 10_000 > size(x[:10].clone())


def mmap_and_assign_avoid_copies() -> None:
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "model.pt"
        torch.save(nn.Linear(3, 2).to(torch.bfloat16).state_dict(), path)
        with torch.device("meta"):
            model = nn.Linear(3, 2)
        before = model.weight
        state = torch.load(path, mmap=True)
        model.load_state_dict(state, assign=True)
        assert model.weight is not before and model.weight.dtype == torch.bfloat16
        assert model.weight.data_ptr() == state["weight"].data_ptr()
        del state, model
