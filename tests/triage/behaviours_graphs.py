"""What autograd, hooks and the compiler do, as claims say it (claims/graphs.md, claims/compiling.md). Each function fails if it is not so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


# --- graphs --------------------------------------------------------------------------------------------------------------------------
def in_place_matters_where_the_value_was_saved() -> None:
    def changed(op: Any, part: int) -> None:
        x = torch.ones(3, requires_grad=True) * 2
        y = op(x)
        loss = y.sum()
        (x, y)[part].add_(1)
        loss.backward()

    changed(torch.exp, 0)
    changed(lambda x: x**2, 1)
    changed(lambda x: 10 * x, 0)
    for op, part in ((torch.exp, 1), (lambda x: x**2, 0)):
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            changed(op, part)


def create_graph_is_the_second_order() -> None:
    w = torch.tensor(2.0, requires_grad=True)

    def outer(create: bool) -> float:
        (g,) = torch.autograd.grad(w**3, w, create_graph=create, retain_graph=True)
        fast = w - 0.1 * g
        return torch.autograd.grad(fast**2, w)[0].item()

    first = 2 * (2 - 0.1 * 12)
    assert abs(outer(False) - first) < 1e-4  # the inner gradient is a constant
    assert abs(outer(True) - first * (1 - 0.1 * 12)) < 1e-4


def a_hessian_vector_product_is_two_gradients() -> None:
    x, v = torch.randn(3, requires_grad=True), torch.randn(3)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (product,) = torch.autograd.grad((g * v).sum(), x)
    full = torch.func.hessian(lambda t: (t**3).sum())(x.detach())
    assert torch.allclose(product, full @ v, atol=1e-4)
    hidden = nn.Linear(3, 3)(x)
    assert torch.autograd.grad(hidden.pow(2).sum(), hidden)[0].shape == hidden.shape


def saved_tensors_is_a_tuple() -> None:
    seen: list[type] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(type(ctx.saved_tensors))
            return grad * 2

    Double.apply(torch.ones(1, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    assert seen == [tuple]


def a_view_made_without_grad_cannot_be_changed() -> None:
    x = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        view = x[:2]
    with pytest.raises(RuntimeError, match="view was created in no_grad mode"):
        view.add_(1)


def three_kinds_of_hooks() -> None:
    layer, seen = nn.Linear(2, 2), []
    layer.register_forward_hook(lambda m, a, out: seen.append("forward"))
    layer.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert set(seen) == {"forward", "backward", "accumulated"}


def hooks_need_the_call() -> None:
    layer, seen = nn.Linear(2, 2), []
    layer.register_forward_hook(lambda m, a, out: seen.append(1))
    layer.forward(torch.ones(1, 2))
    assert seen == []
    layer(torch.ones(1, 2))
    assert seen == [1]


def a_hook_returns_the_new_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: -g)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [-3.0, -3.0]


def per_sample_gradients_by_vmap() -> None:
    w, x = torch.randn(3), torch.randn(4, 3)
    each = torch.func.vmap(torch.func.grad(lambda w, x: (w @ x) ** 2), in_dims=(None, 0))(w, x)
    whole = torch.func.grad(lambda w: ((x @ w) ** 2).mean())(w)
    assert each.shape == (4, 3) and torch.allclose(each.mean(0), whole, atol=1e-5)


def argmax_and_round_give_no_gradient() -> None:
    x = torch.randn(3, requires_grad=True)
    assert not x.argmax().requires_grad and not (x > 0).requires_grad
    x.round().sum().backward()
    assert x.grad is not None and not x.grad.any()
    hard = F.gumbel_softmax(torch.randn(3, requires_grad=True), hard=True)
    assert hard.requires_grad and hard.max() == 1.0


# --- the compiler --------------------------------------------------------------------------------------------------------------------
def compile_captures_scalars() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        double = torch.compile(lambda x: x * x.sum().item(), backend="eager", fullgraph=True)
        assert double(torch.ones(2)).tolist() == [2.0, 2.0]
    torch._dynamo.reset()


def a_plain_function_is_compiled() -> None:
    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * (x > 0)

    x = torch.tensor([-1.0, 1.0], requires_grad=True)
    torch.compile(lambda x: Relu.apply(x), backend="aot_eager", fullgraph=True)(x).sum().backward()  # type: ignore[no-untyped-call]
    torch._dynamo.reset()
    assert x.grad is not None and x.grad.tolist() == [0.0, 1.0]


def train_and_eval_are_two_graphs() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    compiled = torch.compile(model, backend=counter)
    for _ in range(2):
        model.train()
        compiled(torch.ones(1, 2))
        model.eval()
        compiled(torch.ones(1, 2))
    torch._dynamo.reset()
    assert counter.frame_count == 2


def changing_lengths_compile_twice() -> None:
    from torch._dynamo.testing import CompileCounter

    def compilations(**options: Any) -> int:
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(lambda x: x.sin().sum(), backend=counter, **options)
        for length in range(2, 9):
            compiled(torch.ones(4, length))
        return counter.frame_count

    assert compilations() == 2 and compilations(dynamic=False) == 7
    torch._dynamo.reset()
