"""What torch does with losses, optimizers, memory and modules, as claims say it does (`backs: torch:NAME`)."""

from __future__ import annotations

import itertools
import math
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


def a_stepped_weight_is_named_as_one() -> None:
    for layer, x in (
        (nn.Linear, torch.ones(2, 2)),
        (lambda a, b: nn.Conv1d(a, b, 1), torch.ones(1, 2, 2)),
    ):
        model = nn.Sequential(layer(2, 2), layer(2, 2))
        before = model(x).sum()
        model(x).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        with pytest.raises(
            RuntimeError,
            match=r"\]\](, which is output 0 of (T|AsStrided)\w*,)? is at version 2; expected version 1",
        ):
            before.backward()


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
