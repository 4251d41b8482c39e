"""Errors of autograd, hooks and the compiler, provoked. A function's name is its claim's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ALSO = {
    "gradient_dtype": "gradient-assigned-wrong",
    "unbind_inplace": "multi-view-inplace",
    "view_without_grad": "function-returns-a-view",
}


def create_graph_in_backward() -> None:
    nn.Linear(2, 1)(torch.ones(1, 2)).pow(2).sum().backward(create_graph=True)


def backward_not_implemented() -> None:
    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    Forward.apply(torch.ones(2, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


def view_without_grad() -> None:
    x = torch.ones(4, requires_grad=True) * 1
    with torch.no_grad():
        view = x[:2]
    view.add_(1)


def multi_view_inplace() -> None:
    one, _ = torch.ones(4, requires_grad=True).mul(1).split(2)
    one += 1


def unbind_inplace() -> None:
    for row in torch.ones(4, 2, requires_grad=True).mul(1).unbind(0):
        row.add_(1)


def gradient_assigned_wrong() -> None:
    nn.Parameter(torch.ones(2)).grad = torch.ones(3)


def gradient_dtype() -> None:
    nn.Parameter(torch.ones(2)).grad = torch.ones(2).half()


def not_differentiable_twice() -> None:
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q)
    (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    g.sum().backward()


def non_full_hook() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() * 2

    model = Two()
    model.register_backward_hook(lambda *_: None)
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()


def grad_of_a_non_leaf() -> None:
    torch.ones(2, requires_grad=True).mul(2).grad  # noqa: B018


def reentrant_and_grad() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1, 2, requires_grad=True)
    out: Any = checkpoint(nn.Linear(2, 2), x, use_reentrant=True)
    torch.autograd.grad(out.sum(), x)


def compile_the_model_only() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    try:
        torch.compile(step, backend="eager", fullgraph=True)(nn.Linear(2, 1), torch.ones(1, 2))
    finally:
        torch._dynamo.reset()


def compile_double_backward() -> None:
    x = torch.ones(1, 2, requires_grad=True)
    try:
        out = torch.compile(nn.Linear(2, 1), backend="aot_eager")(x)
        (g,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
        g.sum().backward()
    finally:
        torch._dynamo.reset()


def backend_compiler_failed() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    try:
        torch.compile(nn.Linear(2, 1), backend=broken)(torch.ones(1, 2))
    finally:
        torch._dynamo.reset()
