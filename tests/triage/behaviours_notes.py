"""What claims of autograd's and the tensors' notes rest on (`claims/autograd-notes.md`)."""

from __future__ import annotations

import contextlib
import inspect
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class _Saved:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@contextlib.contextmanager
def _watched() -> Iterator[list[Any]]:
    """Weak references to what is saved for backward inside."""
    held: list[Any] = []

    def pack(tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor.detach())  # an output would keep itself alive
        held.append(weakref.ref(saved))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        yield held


def the_graph_keeps_what_backward_needs() -> None:
    def kept(f: Any) -> int:
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            f(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
        return len(packed)

    assert kept(lambda a, b: a + b) == 0
    assert kept(lambda a, b: a * b) == 2
    assert kept(lambda a, b: a.exp()) == 1
    with _watched() as held:
        x = torch.ones(3, requires_grad=True)
        middle = x.exp()
        out = (middle * 2).sum()
        del middle
    assert held[0]() is not None
    del out
    assert held[0]() is None


def save_on_cpu_gives_the_same_gradient() -> None:
    x = torch.randn(4, requires_grad=True)
    (plain,) = torch.autograd.grad(x.exp().sum(), x)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp().sum()
    assert torch.equal(torch.autograd.grad(y, x)[0], plain)


def gradients_at_kinks() -> None:
    def gradient(f: Any, *values: float) -> list[float]:
        x = torch.tensor(values, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert gradient(torch.relu, 0.0) == [0.0]
    assert gradient(torch.abs, 0.0) == [0.0]
    assert gradient(lambda x: x.clamp(0.0, 1.0), 0.0, 1.0) == [1.0, 1.0]
    assert sorted(gradient(lambda x: x.max(dim=0).values, 2.0, 2.0)) == [0.0, 1.0]
    assert gradient(lambda x: x.amax(0), 2.0, 2.0) == [0.5, 0.5]
    assert gradient(lambda x: x.max(), 2.0, 2.0) == [0.5, 0.5]
    assert gradient(lambda x: torch.maximum(x, torch.tensor(2.0)), 2.0) == [0.5]
    assert math.isinf(gradient(torch.sqrt, 0.0)[0])


def inference_tensors_stay_outside() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    assert made.is_inference() and not (made * 2).requires_grad
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        made.add_(torch.ones(2, requires_grad=True))


def frozen_weights_pass_the_gradient_on() -> None:
    first, frozen = nn.Linear(3, 3), nn.Linear(3, 1).requires_grad_(False)
    frozen(first(torch.ones(1, 3))).sum().backward()
    assert first.weight.grad is not None and first.weight.grad.abs().sum() > 0
    assert frozen.weight.grad is None


def backward_in_threads_adds_up() -> None:
    weight = nn.Parameter(torch.zeros(1))
    lock = threading.Lock()

    def work() -> None:
        (grad,) = torch.autograd.grad((weight * 2).sum(), weight)
        with lock:
            weight.grad = grad if weight.grad is None else weight.grad + grad

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert weight.grad is not None and weight.grad.item() == 8


def complex_gradient_points_downhill() -> None:
    z = torch.tensor([1 + 2j], requires_grad=True)
    z.abs().square().sum().backward()
    assert z.grad is not None and torch.allclose(z.grad, 2 * z.detach())
    before = z.abs().item()
    torch.optim.Adam([z], lr=0.1).step()
    assert z.abs().item() < before


def a_tensor_hook_sees_one_backward() -> None:
    weight = nn.Parameter(torch.zeros(1))
    one, after = [], []
    weight.register_hook(lambda g: one.append(g.item()))
    weight.register_post_accumulate_grad_hook(
        lambda p: after.append(p.grad.item() if p.grad is not None else None)
    )
    for _ in range(2):
        (3 * weight).sum().backward()
    assert one == [3.0, 3.0] and after == [3.0, 6.0]


def a_forward_hook_returns_features() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    found: dict[str, torch.Tensor] = {}
    model[1].register_forward_hook(lambda module, args, out: found.update(out=out))
    model(torch.ones(4, 2))
    assert found["out"].shape == (4, 3) and found["out"].requires_grad


def a_kept_output_keeps_its_graph() -> None:
    layer = nn.Linear(2, 2)
    with _watched() as held:
        kept = [layer(torch.ones(1, 2)).exp()]
    assert held[-1]() is not None
    kept[0] = kept[0].detach()
    assert all(one() is None for one in held)


def hidden_gradients_are_kept_on_request() -> None:
    import warnings

    x = torch.ones(2, requires_grad=True)
    hidden = x * 2
    hidden.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert hidden.grad is None
    hidden = x * 2
    hidden.retain_grad()
    hidden.sum().backward()
    assert hidden.grad is not None
    with torch.no_grad():
        assert (x * 2).grad_fn is None


def second_derivative_with_create_graph() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.item() == pytest.approx(12.0)
    (first,) = torch.autograd.grad((x**3).sum(), x)
    assert not first.requires_grad


def relu_has_no_curvature() -> None:
    for activation, flat in ((nn.ReLU(), True), (nn.Tanh(), False)):
        net = nn.Sequential(nn.Linear(1, 8), activation, nn.Linear(8, 1))
        x = torch.randn(5, 1, requires_grad=True)
        (first,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        assert (second is None or bool((second == 0).all())) is flat


def batched_jacobian_with_vmap() -> None:
    net, rows = nn.Linear(3, 2), torch.randn(5, 3)
    assert torch.func.vmap(torch.func.jacrev(net))(rows).shape == (5, 2, 3)
    whole = torch.autograd.functional.jacobian(net, rows)
    assert whole.shape == (5, 2, 5, 3)  # type: ignore[union-attr]


def functional_call_uses_what_it_is_given() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    given = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
    torch.func.functional_call(net, given, (torch.ones(3, 2),)).sum().backward()
    assert given["0.weight"].grad is not None
    assert all(p.grad is None for p in net.parameters())


def column_minus_row_is_a_matrix() -> None:
    assert (torch.zeros(64, 1) - torch.zeros(64)).shape == (64, 64)


def in_place_never_grows() -> None:
    a, b = torch.zeros(3, 4), torch.zeros(4)
    a += b
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        b += a


def sums_depend_on_their_order() -> None:
    a, b, c = (torch.tensor(v) for v in (1e8, -1e8, 1.0))
    assert (a + b) + c != a + (b + c)


def reduced_reductions_are_allowed() -> None:
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction


def equal_eigenvalues_have_no_gradient() -> None:
    a = torch.eye(3, requires_grad=True)
    torch.linalg.eigh(a)[1].square()[0].cumsum(0).sum().backward()
    assert a.grad is not None and not a.grad.isfinite().all()
    b = torch.eye(3, requires_grad=True)
    torch.linalg.eigvalsh(b).sum().backward()
    assert b.grad is not None and b.grad.isfinite().all()


def where_lets_nan_through() -> None:
    x = torch.tensor([0.0], requires_grad=True)
    torch.where(x > 0, 1 / x, torch.zeros(1)).sum().backward()
    assert x.grad is not None and x.grad.isnan().all()
    x = torch.zeros(2, requires_grad=True)
    (x / x.norm()).sum().backward()
    assert x.grad is not None and not x.grad.isfinite().all()
    x = torch.zeros(2, requires_grad=True)
    F.normalize(x, dim=0).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def solve_is_more_accurate_than_inverse() -> None:
    a = torch.tensor([[1.0 / (i + j + 1) for j in range(7)] for i in range(7)])
    x = torch.ones(7)
    b = (a.double() @ x.double()).float()
    residual = [(a @ s - b).norm().item() for s in (torch.linalg.solve(a, b), torch.inverse(a) @ b)]
    assert residual[0] < residual[1]


def attention_defaults() -> None:
    assert inspect.signature(nn.MultiheadAttention).parameters["batch_first"].default is False
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    x = torch.randn(1, 3, 4)
    ignored = torch.tensor([[False, False, True]])
    _, weights = attention(x, x, x, key_padding_mask=ignored)
    assert (weights[..., 2] == 0).all()


def attention_weights_on_request() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(1, 3, 4)
    assert attention(x, x, x, need_weights=False)[1] is None
    assert attention(x, x, x)[1].shape == (1, 3, 3)
    assert attention(x, x, x, average_attn_weights=False)[1].shape == (1, 2, 3, 3)


def flex_attention_masks_are_functions() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    def window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < 128)

    mask = create_block_mask(window, None, None, 512, 512, device="cpu")
    assert mask.sparsity() > 40


def nested_tensors_are_a_prototype() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    assert nn.Linear(3, 1)(nested).is_nested
    with pytest.raises(NotImplementedError):
        torch.linalg.svd(nested)


def fft_wants_float32() -> None:
    with pytest.raises(RuntimeError, match="Unsupported dtype"):
        torch.fft.rfft(torch.ones(8, dtype=torch.bfloat16))
    assert torch.fft.rfft(torch.ones(8)).dtype == torch.complex64
