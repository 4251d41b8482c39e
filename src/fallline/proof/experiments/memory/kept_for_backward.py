"""What is kept for the backward pass, and in which layout: selective checkpointing, offload to the host, channels_last, attention kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from fallline.proof.experiment import Measured, experiment


@experiment(
    "selective-checkpointing-keeps-matmuls",
    claim="Full checkpointing runs every matmul of the forward twice; a selective policy that saves them recomputes only the cheap operations, with the same gradient.",
)
def selective_checkpointing_keeps_matmuls() -> Measured:
    full, full_gradient = _matmuls(selective=False)
    some, some_gradient = _matmuls(selective=True)
    same = bool(torch.equal(full_gradient, some_gradient))
    return Measured(
        sides={"full": {"forward matmuls": full}, "selective": {"forward matmuls": some}},
        conclusion=f"two layers: {full} forward matmuls with full checkpointing, {some} with matmuls saved; the gradients are {'equal' if same else 'different'}",
        holds={"full runs them twice": full == 4, "selective once": some == 2, "the gradient is the same": same},
    )  # fmt: skip


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


def _matmuls(selective: bool) -> tuple[int, Tensor]:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(2, 4, requires_grad=True)
    with _Count() as count:
        if selective:
            out = checkpoint(block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(_policy))  # fmt: skip
        else:
            out = checkpoint(block, x, use_reentrant=False)
        assert isinstance(out, Tensor)
        out.sum().backward()
    assert x.grad is not None
    return count.seen, x.grad


def _policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@experiment(
    "offload-moves-what-backward-needs",
    claim="Saved-tensor hooks hand everything that backward needs to the host and take it back, activations and not weights' optimizer state; the gradient is bit for bit the same.",
)
def offload_moves_what_backward_needs() -> Measured:
    moved: list[int] = []

    def away(x: Tensor) -> Tensor:
        moved.append(x.nbytes)
        return x.detach().clone()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    x = torch.randn(32, 64)
    model(x).sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(away, lambda kept: kept):
        loss = model(x).sum()
    loss.backward()
    same = all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True) if p.grad is not None)  # fmt: skip
    state = sum(8 * p.numel() for p in model.parameters())
    return Measured(
        sides={
            "moved away": {"tensors": len(moved), "bytes": sum(moved)},
            "not moved": {"bytes of AdamW's state": state},
        },
        conclusion=f"{len(moved)} tensors, {sum(moved):,} bytes, left for the host and came back; the gradients are {'the same' if same else 'different'}; AdamW's {state:,} bytes stay where they are",
        holds={"activations are moved": sum(moved) >= x.nbytes + 32 * 256 * 4, "the gradient is the same": same},
    )  # fmt: skip


@experiment(
    "channels-last-is-a-layout",
    claim="channels_last changes the order in memory and no value or shape; convolutions keep it, and one view or reshape of a wrong kind copies it back.",
)
def channels_last_is_a_layout() -> Measured:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8)
    plain = conv(x)
    y = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.data = conv.weight.to(memory_format=torch.channels_last)
    out = conv(y)
    kept = out.is_contiguous(memory_format=torch.channels_last)
    lost = not out.contiguous().is_contiguous(memory_format=torch.channels_last)
    apart = float((out - plain).abs().max())
    return Measured(
        sides={
            "input": {"strides before": str(x.stride()), "strides after": str(y.stride())},
            "output": {"in channels_last": kept, "apart from the plain one": apart},
        },
        conclusion=f"strides go from {x.stride()} to {y.stride()}, the convolution keeps the layout, its values are {apart:.0e} apart, and `.contiguous()` undoes it",
        holds={"the input is equal": bool(torch.equal(x, y)), "a convolution keeps it": kept, "the values are the same": apart < 1e-5, "contiguous() undoes it": lost},
    )  # fmt: skip


@experiment(
    "attention-kernels-agree",
    claim="The kernels of scaled_dot_product_attention give the same numbers up to rounding, so forcing one changes speed and memory only; one that cannot take the inputs raises when it is the only one allowed.",
)
def attention_kernels_agree() -> Measured:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    outs = []
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            outs.append(scaled_dot_product_attention(q, k, v, is_causal=True))
    apart = float((outs[0] - outs[1]).abs().max())
    raised = "none"
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            scaled_dot_product_attention(q, k, v)
    except RuntimeError as error:
        raised = type(error).__name__
    return Measured(
        sides={
            "math and flash": {"apart": apart},
            "a kernel that is not for this device": {"raises": raised},
        },
        conclusion=f"math and flash attention are {apart:.0e} apart; cuDNN's alone on a CPU raises {raised}",
        holds={"they agree": apart < 1e-5, "an impossible one raises": raised == "RuntimeError"},
    )
