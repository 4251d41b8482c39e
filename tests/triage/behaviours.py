"""What torch does, as claims say it does: each function executes one documented behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def _alone(body: Any) -> None:
    """In a process group of one: enough for what DDP, FSDP and DTensor do to a module."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            body()
        finally:
            dist.destroy_process_group()


def adam_is_scale_free() -> None:
    steps = []
    for scale in (1.0, 1000.0):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        weight.grad = torch.full((1,), scale)
        optimizer.step()
        steps.append(weight.item())
    assert math.isclose(*steps, rel_tol=1e-4)


def all_masked_softmax_is_nan() -> None:
    assert torch.full((2,), float("-inf")).softmax(0).isnan().all()
    assert torch.full((2,), torch.finfo(torch.float32).min).softmax(0).isfinite().all()


def backward_hook_forbids_inplace() -> None:
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda *_: None)
    out = layer(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        out += 1


def ce_wants_long() -> None:
    with pytest.raises(RuntimeError, match="Long"):
        F.cross_entropy(torch.randn(4, 3), torch.ones(4))
    F.cross_entropy(torch.randn(4, 3), torch.ones(4).long())


def chance_loss() -> None:
    assert F.cross_entropy(torch.zeros(4, 10), torch.arange(4)).item() == pytest.approx(
        2.3026, abs=1e-3
    )
    assert math.log(50_000) == pytest.approx(10.8, abs=0.05)


def channels_last_strides() -> None:
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    out = conv(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)


def compiled_keys_have_prefix() -> None:
    assert all(k.startswith("_orig_mod.") for k in torch.compile(nn.Linear(2, 2)).state_dict())
    model = nn.Linear(2, 2)
    model.compile()
    assert not any(k.startswith("_orig_mod.") for k in model.state_dict())


def cuda_is_available_is_callable() -> None:
    assert isinstance(torch.cuda.is_available(), bool)


def custom_op_compiles() -> None:
    @torch.library.custom_op("behaviours::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, g: 2 * g)
    compiled = torch.compile(lambda x: twice(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


def ddp_names_unused_parameters() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.a(x)
            return out

    def body() -> None:
        model = nn.parallel.DistributedDataParallel(Two())
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match=r"did not receive grad for rank 0: 2 3"):
            model(torch.ones(1, 2))
        finding = nn.parallel.DistributedDataParallel(Two(), find_unused_parameters=True)
        for _ in range(2):
            finding(torch.ones(1, 2)).sum().backward()

    _alone(body)


def double_softmax_flattens() -> None:
    logits = torch.tensor([[8.0, 0.0]], requires_grad=True)
    wrong = F.cross_entropy(logits.softmax(-1), torch.tensor([1]))
    right = F.cross_entropy(logits, torch.tensor([1]))
    (flat,), (steep,) = torch.autograd.grad(wrong, logits), torch.autograd.grad(right, logits)
    assert flat.norm() < 0.01 * steep.norm()


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def dtensor_norm_is_global() -> None:
    def body() -> None:
        from torch.distributed.tensor import DTensor

        model = _sharded(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        assert isinstance(norm, DTensor)
        assert norm.full_tensor().item() == pytest.approx(math.sqrt(6))

    _alone(body)


def fsdp2_mixed_precision() -> None:
    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = nn.Linear(2, 2)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
        out = model(torch.ones(1, 2))
        out.sum().backward()
        assert out.dtype == torch.bfloat16
        assert next(model.parameters()).dtype == torch.float32

    _alone(body)


def full_state_dict_is_collective() -> None:
    def body() -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        model = _sharded(nn.Linear(2, 2))
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        assert nn.Linear(2, 2).load_state_dict(state).missing_keys == []
        assert hasattr(next(iter(model.state_dict().values())), "full_tensor")

    _alone(body)


def fused_adamw_matches() -> None:
    weights = []
    for fused in (False, True):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=fused)
        for _ in range(3):
            weight.grad = torch.ones(4)
            optimizer.step()
        weights.append(weight.detach())
    assert torch.allclose(*weights)


def gradcheck_needs_double() -> None:
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3 * 100

    torch.manual_seed(0)
    assert torch.autograd.gradcheck(
        cube, (torch.randn(3, dtype=torch.float64, requires_grad=True),)
    )
    with warnings.catch_warnings(), pytest.raises(RuntimeError):
        warnings.simplefilter("ignore")
        torch.autograd.gradcheck(cube, (torch.randn(3, requires_grad=True),))


def inference_tensors_cannot_be_saved() -> None:
    with torch.inference_mode():
        target = torch.ones(2)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (torch.ones(2, requires_grad=True) * target).sum().backward()


def loader_multiprocessing_context() -> None:
    loader = torch.utils.data.DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn")
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def needs_input_grad_flags() -> None:
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            seen.append(ctx.needs_input_grad)
            return grads[0] * ctx.saved_tensors[1], None

    Product.apply(torch.ones(1, requires_grad=True), torch.ones(1)).backward()
    assert seen == [(True, False)]


def eval_keeps_grad() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    assert model(torch.ones(1, 2)).requires_grad
    assert torch.equal(model(torch.ones(1, 2)), model(torch.ones(1, 2)))


def no_grad_keeps_dropout() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        assert (nn.Dropout(0.5)(torch.ones(100)) == 0).any()


def eval_switches_dropout_off() -> None:
    torch.manual_seed(0)
    x = torch.ones(100)
    assert torch.equal(nn.Dropout(0.5).eval()(x), x)
    assert (F.dropout(x, 0.5) == 0).any()


def a_second_step_applies_the_gradient_again() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.step()
    assert weight.item() == pytest.approx(-0.2)


def no_inf_checks() -> None:
    scaler, model = torch.amp.GradScaler("cpu"), nn.Linear(2, 1)
    scaler.scale(torch.ones(1))
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(torch.optim.SGD(model.parameters(), lr=0.1))


def once_differentiable_raises() -> None:
    from tests.triage import provoke, provoke_torch

    assert "once_differentiable" in provoke.said(provoke_torch.once_differentiable)


def product_rule_backward() -> None:
    x, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    grads = torch.autograd.grad((x * w).sum(), (x, w))
    assert torch.equal(grads[0], w) and torch.equal(grads[1], x)


def reduce_overhead_mode_exists() -> None:
    assert "reduce-overhead" in torch._inductor.list_mode_options()
    assert callable(torch.cuda.make_graphed_callables)


def safe_globals_allow() -> None:
    import argparse

    buffer = io.BytesIO()
    torch.save({"args": argparse.Namespace(lr=1)}, buffer)
    for allowed in (
        contextlib.nullcontext(),
        torch.serialization.safe_globals([argparse.Namespace]),
    ):
        buffer.seek(0)
        refused = isinstance(allowed, contextlib.nullcontext)
        with (
            allowed,
            pytest.raises(Exception, match="Namespace") if refused else contextlib.nullcontext(),
        ):
            assert torch.load(buffer)["args"].lr == 1


def sdpa_kernel_restricts() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.ones(1, 1, 4, 4)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(q, q, q)


def sixteen_bytes_a_parameter() -> None:
    model = nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    state = sum(
        t.numel() * t.element_size()
        for t in optimizer.state[model.weight].values()
        if t.numel() > 1
    )
    held = [model.weight, model.weight.grad]
    assert sum(t.numel() * t.element_size() for t in held if t is not None) + state == 16 * 10_000


def size_mismatch_raises_even_unstrict() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(2, 7).load_state_dict(nn.Linear(2, 9).state_dict(), strict=False)


def stateful_loader_resumes() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(list(range(8)), batch_size=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = StatefulDataLoader(list(range(8)), batch_size=2)
    again.load_state_dict(state)
    assert next(iter(again)).tolist() == [2, 3]


def truncated_checkpoint() -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(100), buffer)
    with pytest.raises(RuntimeError, match="PytorchStreamReader failed"):
        torch.load(io.BytesIO(buffer.getvalue()[:200]))


def uneven_inputs_hang() -> None:
    """The documented remedy exists: the Join context lets ranks with fewer inputs take part to the end."""
    from torch.distributed.algorithms.join import Join

    assert callable(Join)
    sampler = torch.utils.data.DistributedSampler(range(5), num_replicas=2, rank=0, drop_last=True)  # type: ignore[arg-type]
    assert len(sampler) == 2


def vmap_refuses_batchnorm() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(RuntimeError, match=r"(?i)batch norm got a batched tensor"):
        torch.func.vmap(lambda x: norm(x[None]))(torch.randn(4, 3, 5))
    torch.func.replace_all_batch_norm_modules_(norm)


def worker_seeds() -> None:
    """Workers draw from generators of their own, seeded from the loader's."""

    class Draws(torch.utils.data.Dataset[float]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, i: int) -> float:
            return torch.rand(1).item()

    runs = [
        torch.cat(
            list(
                torch.utils.data.DataLoader(
                    Draws(), num_workers=1, generator=torch.Generator().manual_seed(seed)
                )
            )
        ).tolist()  # type: ignore[arg-type]
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]
