"""What claims of `claims/further-notes.md` rest on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def backward_returns_one_gradient_per_argument() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0] * ctx.factor, None

    class Short(Scale):
        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0] * ctx.factor

    x = torch.ones(2, requires_grad=True)
    Scale.apply(x, 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Short.apply(x, 3).sum().backward()


def compile_compiles_the_backward_too() -> None:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    torch._dynamo.reset()
    traced = []

    def note(kind: str) -> Any:
        return lambda graph, _: (traced.append(kind), make_boxed_func(graph.forward))[1]

    backend = aot_autograd(fw_compiler=note("forward"), bw_compiler=note("backward"))
    layer = nn.Linear(2, 2)
    torch.compile(layer, backend=backend)(torch.ones(1, 2)).sum().backward()
    assert traced == ["forward", "backward"]
    torch._dynamo.reset()


def fsdp2_documents_prefetching() -> None:
    from tests.triage.behaviours_distributed import _documents
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

    _documents(
        FSDPModule.set_modules_to_forward_prefetch,
        "issued earlier from the CPU",
        "more reserved memory",
    )
    _documents(CPUOffloadPolicy, "optimizer states to CPU")


def the_profiler_separates_host_and_device() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.ones(3, dtype=torch.float64).to(torch.float32)
    names = {event.key for event in seen.key_averages()}
    assert "aten::copy_" in names
    assert hasattr(next(iter(seen.key_averages())), "self_device_time_total")


def adam_makes_its_state_at_the_first_step() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    assert optimizer.state_dict()["state"] == {}
    optimizer.step()  # nothing has a gradient
    assert optimizer.state_dict()["state"] == {}
    weight.grad = torch.ones(2)
    optimizer.step()
    assert set(optimizer.state_dict()["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def trl_documents_the_reference() -> None:
    from tests.triage.behaviours_aligning import _helps
    from trl import DPOConfig

    _helps(DPOConfig, "precompute_ref_log_probs", "before training", "save memory")
    _helps(DPOConfig, "sync_ref_model", "`ref_model_sync_steps`", "`ref_model_mixup_alpha`")


def the_trainer_counts_tokens_of_an_update() -> None:
    from transformers import Trainer

    assert "num_items_in_batch" in inspect.signature(Trainer.compute_loss).parameters
    short, long = torch.tensor([2.0]), torch.ones(9)
    assert torch.cat([short, long]).mean() != (short.mean() + long.mean()) / 2


def instance_norm_needs_no_batch() -> None:
    x = torch.randn(2, 3, 8, 8)
    alone = nn.InstanceNorm2d(3)(x[:1])
    assert torch.allclose(nn.InstanceNorm2d(3)(x)[:1], alone, atol=1e-5)
    assert not torch.allclose(nn.BatchNorm2d(3)(x)[:1], nn.BatchNorm2d(3)(x[:1]), atol=1e-3)


def random_negatives_are_easy() -> None:
    torch.manual_seed(0)
    place = torch.randn(500, 2)  # linked are those that lie near each other
    apart = torch.cdist(place, place)
    near = (apart + 10 * torch.eye(500)).min(1).values
    at_random = apart[torch.arange(500), torch.randint(500, (500,))]
    second = apart.sort(1).values[:, 2]
    assert (near < at_random).float().mean() > 0.98 and second.mean() < 0.2 * at_random.mean()


def attention_memory_without_a_matrix() -> None:
    q = torch.randn(1, 1, 64, 8, requires_grad=True)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (sizes.append(t.numel()), t)[1], lambda t: t
    ):
        (q @ q.transpose(-2, -1)).softmax(-1) @ q
        plain = max(sizes)
        sizes.clear()
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)
    assert plain == 64 * 64 > max(sizes)
