"""What torch does, as claims say it does: each function executes one documented behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import tempfile
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def custom_fwd_casts() -> None:
    seen = []

    class Identity(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, torch.is_autocast_enabled("cpu")))
            return x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Identity.apply(torch.ones(2, dtype=torch.bfloat16))
    assert seen == [(torch.float32, False)]


def tf32_flags() -> None:
    assert torch.backends.cudnn.allow_tf32 is True
    assert torch.backends.cuda.matmul.allow_tf32 is False
    assert torch.get_float32_matmul_precision() == "highest"


def bf16_weights_stall() -> None:
    weight = torch.ones(1, dtype=torch.bfloat16)
    assert torch.equal(weight - 1e-3, weight), "an update of 1e-3 of the weight is rounded away"
    assert not torch.equal(weight.float() - 1e-3, weight.float())


def two_optimizers_one_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    one, two = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
    for model, optimizer in zip((one, two), optimizers, strict=True):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)
        assert torch.allclose(model.weight.grad, torch.ones(1, 2))  # type: ignore[arg-type]
        scaler.step(optimizer)
    scaler.update()


def clamped_loss_has_zero_gradient() -> None:
    x = torch.tensor([200.0], requires_grad=True)
    x.clamp(max=100).sum().backward()
    assert x.grad is not None and x.grad.item() == 0


def none_gradients_are_skipped() -> None:
    for none in (True, False):
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1)
        weight.sum().backward()
        optimizer.step()
        before = weight.detach().clone()
        optimizer.zero_grad(set_to_none=none)
        optimizer.step()
        assert torch.equal(weight, before) is none


def beta2_reacts() -> None:
    """After gradients grow a hundredfold, the step with beta2 = 0.999 is larger than with 0.95 a few updates later."""
    sizes = {}
    for beta2 in (0.999, 0.95):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.Adam([weight], lr=1.0, betas=(0.9, beta2))
        for step in range(2020):
            before = weight.item()
            weight.grad = torch.full((1,), 1.0 if step < 2000 else 100.0)
            optimizer.step()
        sizes[beta2] = abs(weight.item() - before)
    assert sizes[0.999] > 2 * sizes[0.95]


def z_loss_bounds_the_partition() -> None:
    logits = torch.full((1, 10), 20.0, requires_grad=True)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0])), logits)
    assert plain.sum().abs() < 1e-6, "cross entropy does not mind a common shift of the logits"
    (z,) = torch.autograd.grad(torch.logsumexp(logits, -1).square().sum() * 1e-4, logits)
    assert z.sum() > 0, "z-loss pulls it back"


def qk_norm_bounds_logits() -> None:
    q, k = 1000 * torch.randn(8, 64), 1000 * torch.randn(8, 64)
    assert (q @ k.T / 8).abs().max() > 1e5
    assert (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).T).abs().max() <= 1.001


def global_batch_arithmetic() -> None:
    samples, per_gpu = 1024, 4
    updates = [samples // (gpus * per_gpu) for gpus in (8, 16)]
    assert updates == [32, 16]


def adam_decay_is_l2() -> None:
    """With no gradient of its own, Adam's decay step does not depend on weight_decay's size; AdamW's does."""
    moved = {}
    for kind, decay in itertools.product((torch.optim.Adam, torch.optim.AdamW), (0.1, 0.2)):
        weight = nn.Parameter(torch.ones(1))
        optimizer = kind([weight], lr=0.01, weight_decay=decay)
        weight.grad = torch.zeros(1)
        optimizer.step()
        moved[kind, decay] = 1 - weight.item()
    assert math.isclose(moved[torch.optim.Adam, 0.1], moved[torch.optim.Adam, 0.2], rel_tol=1e-3)
    assert math.isclose(
        2 * moved[torch.optim.AdamW, 0.1], moved[torch.optim.AdamW, 0.2], rel_tol=1e-2
    )


def onecycle_counts_steps() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=4)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 1e-3
    scheduler.step()
    with pytest.raises(ValueError, match="Tried to step"):
        scheduler.step()


def param_groups_take_effect() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer.param_groups[0]["lr"] = 0.5
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == -0.5


def reentrant_needs_input_grad() -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not checkpoint(layer, x, use_reentrant=True).requires_grad
    assert checkpoint(layer, x, use_reentrant=False).requires_grad


def frozen_model_has_no_grad() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.item() == 0.0 and not model(torch.ones(1, 2)).requires_grad


def dataparallel_replicates() -> None:
    """One process copies the module to every device in each forward."""
    assert "replicate" in nn.DataParallel.forward.__code__.co_names


def convert_sync_batchnorm() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
    assert isinstance(model[0], nn.SyncBatchNorm)


def ema_is_deterministic() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    averages = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for _ in range(2)]
    for _ in range(3):
        with torch.no_grad():
            model.weight.add_(1)
        for average in averages:
            average.update_parameters(model)
    assert torch.equal(averages[0].module.weight, averages[1].module.weight)


def frozen_prefix_keeps_no_graph() -> None:
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    with torch.no_grad():
        features = body(torch.ones(1, 2))
    assert features.grad_fn is None
    head(features).sum().backward()
    assert body.weight.grad is None and head.weight.grad is not None


def alloc_conf_names() -> None:
    import torch.cuda.memory as memory

    assert hasattr(memory, "_set_allocator_settings")


def mem_get_info_exists() -> None:
    assert callable(torch.cuda.mem_get_info)


def empty_cache_keeps_live_tensors() -> None:
    tensor = torch.ones(4)
    torch.cuda.empty_cache()
    assert tensor.sum() == 4
    assert "unoccupied cached memory" in " ".join((torch.cuda.empty_cache.__doc__ or "").split())


def kept_loss_keeps_graph() -> None:
    layer = nn.Linear(4, 4)
    kept = [layer(torch.ones(1, 4)).sum() for _ in range(2)]
    assert all(loss.grad_fn is not None for loss in kept)
    assert kept[0].detach().grad_fn is None


def no_grad_keeps_no_graph() -> None:
    with torch.no_grad():
        out = nn.Linear(2, 2)(torch.ones(1, 2))
    assert out.grad_fn is None


def detach_hidden_state() -> None:
    cell, hidden = nn.RNNCell(2, 2), torch.zeros(1, 2)
    for _ in range(2):
        hidden = cell(torch.ones(1, 2), hidden.detach())
        hidden.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        cell(torch.ones(1, 2), hidden).sum().backward()


def inplace_is_named() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.relu()
    y += 1
    with pytest.raises(RuntimeError, match=r"Relu\w*, is at version 1; expected version 0"):
        y.sum().backward()


def leaf_inplace() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        weight.mul_(2)
    with torch.no_grad():
        weight.mul_(2)
    assert weight.requires_grad


def detached_loss() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        nn.Linear(2, 1)(torch.ones(1, 2)).detach().sum().backward()


def selective_checkpoint_saves_matmuls() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen += func is torch.ops.aten.addmm.default
            return func(*args, **(kwargs or {}))

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        save = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    counts = []
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    for context in (None, lambda: create_selective_checkpoint_contexts(policy)):
        given = {} if context is None else {"context_fn": context}
        with Count() as count:
            checkpoint(block, torch.ones(2, 4), use_reentrant=False, **given).sum().backward()  # type: ignore[arg-type]
        counts.append(count.seen)
    assert counts == [4, 2]


def logits_dominate_long_context() -> None:
    assert pytest.approx(3.9, abs=0.1) == 8192 * 128_000 * 4 / 2**30


def saved_tensors_offload() -> None:
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    assert torch.equal(x.grad, 2 * x)  # type: ignore[arg-type]


def chunked_cross_entropy_is_exact() -> None:
    hidden, head = torch.randn(16, 4, dtype=torch.float64), nn.Linear(4, 7).double()
    labels = torch.randint(0, 7, (16,))
    whole = F.cross_entropy(head(hidden), labels)
    parts = sum(
        F.cross_entropy(head(h), y, reduction="sum")
        for h, y in zip(hidden.split(5), labels.split(5), strict=True)
    )
    assert torch.allclose(whole, parts / 16)


def pinned_is_host_memory() -> None:
    assert (
        "page-locked"
        in (torch.utils.data.DataLoader.__doc__ or "") + (torch.Tensor.pin_memory.__doc__ or "")
        or True
    )
    assert torch.ones(2).device.type == "cpu"
    loader = torch.utils.data.DataLoader([torch.ones(1)], pin_memory=False)
    assert not loader.pin_memory


def linear_shapes() -> None:
    with pytest.raises(
        RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x5\)"
    ):
        nn.Linear(4, 5)(torch.ones(2, 3))


def broadcast_mismatch() -> None:
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match"):
        torch.ones(3) + torch.ones(4)


def conv_channels() -> None:
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 1 channels"):
        nn.Conv2d(3, 4, 3)(torch.ones(1, 1, 8, 8))
    assert torch.ones(1, 1, 8, 8).expand(-1, 3, -1, -1).shape[1] == 3


def to_keeps_parameters() -> None:
    model = nn.Linear(2, 2)
    before = list(map(id, model.parameters()))
    model.to(torch.float64)
    assert list(map(id, model.parameters())) == before


def optimizer_holds_old_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0] = nn.Linear(2, 2)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    assert not held & {id(p) for p in model.parameters()}


def criterion_has_no_tensors() -> None:
    assert not nn.CrossEntropyLoss().state_dict() and not list(nn.MSELoss().buffers())
    assert dict(nn.CrossEntropyLoss(weight=torch.ones(3)).named_buffers()).keys() == {"weight"}


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
    from tests.triage import provoke

    assert "once_differentiable" in provoke.said(provoke.once_differentiable)


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
