"""Custom Functions and operators among their neighbours: gradients nobody wants, second derivatives, torch.compile, vmap, hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "unwanted-gradients-are-computed",
    claim="A custom backward runs for all inputs unless it asks ctx.needs_input_grad; what it returns for an input without requires_grad is thrown away.",
    taught="Autograd skips the gradients that nobody needs by itself.",
)
def unwanted_gradients_are_computed() -> Measured:
    always, asked = _products(ask=False), _products(ask=True)
    return Measured(
        sides={
            "both gradients returned": {"products computed in backward": always},
            "needs_input_grad asked": {"products computed in backward": asked},
        },
        conclusion=f"with one of two inputs frozen, backward computed {always} products, and {asked} after asking ctx.needs_input_grad",
        holds={
            "autograd does not skip them": always == 2,
            "asking does": asked == 1,
        },
    )


def _products(ask: bool) -> int:
    done: list[int] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            wanted = ctx.needs_input_grad if ask else (True, True)
            done.extend(n for n in (0, 1) if wanted[n])
            x, w = ctx.saved_tensors
            return grads[0] * w if wanted[0] else None, grads[0] * x if wanted[1] else None

    Product.apply(torch.ones(3, requires_grad=True), torch.ones(3)).sum().backward()
    return len(done)


@experiment(
    "once-differentiable-refuses-the-second",
    claim="A backward in plain tensor operations is differentiable again; one under once_differentiable raises when a gradient penalty asks for more.",
)
def once_differentiable_refuses_the_second() -> Measured:
    open_, closed = _second(once=False), _second(once=True)
    return Measured(
        sides={
            "plain backward": {"second derivative of x³ at 2": open_},
            "under once_differentiable": {"second derivative of x³ at 2": closed},
        },
        conclusion=f"the second derivative of x³ at 2 is {open_} with a plain backward; under once_differentiable it ends with a {closed}",
        holds={"the plain one is right": open_ == "12", "the other raises": closed == "RuntimeError"},
    )  # fmt: skip


def _second(once: bool) -> str:
    def back(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = 3 * x * x * grad
        return out

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        backward = staticmethod(once_differentiable(back) if once else back)  # type: ignore[assignment]

    x = torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x), x, create_graph=True)
    found: list[float] = []
    raised = error_of(lambda: found.append(torch.autograd.grad(first, x)[0].item()))
    return f"{found[0]:g}" if found else raised


@experiment(
    "custom-op-stays-whole",
    claim="A Python function that torch.compile cannot trace breaks its graph; registered with torch.library.custom_op it is one node, and its gradient is the registered one.",
)
def custom_op_stays_whole() -> Measured:
    def opaque(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2

    op = torch.library.custom_op("fallline_proof::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")  # fmt: skip
    op.register_fake(torch.empty_like)
    op.register_autograd(lambda ctx, grad: 2 * grad)
    breaks = [
        torch._dynamo.explain(lambda x, f=f: f(x + 1) + 1)(torch.ones(2)).graph_break_count
        for f in (opaque, op)
    ]
    torch._dynamo.reset()
    x = torch.ones(2, requires_grad=True)
    op(x).sum().backward()
    gradient = x.grad[0].item() if x.grad is not None else 0.0
    return Measured(
        sides={
            "plain Python": {"graph breaks": breaks[0]},
            "custom_op": {"graph breaks": breaks[1], "gradient": gradient},
        },
        conclusion=f"{breaks[0]} graph breaks for the function, {breaks[1]} for the operator, whose gradient is {gradient:g}",
        holds={"the function breaks the graph": breaks[0] > 0, "the operator does not": breaks[1] == 0, "its gradient is the registered one": gradient == 2},
    )  # fmt: skip


@experiment(
    "vmap-refuses-batchnorm",
    claim="Per-sample gradients with vmap fail through BatchNorm in train mode, whose running statistics it would have to update for each sample; with GroupNorm they are those of single passes.",
)
def vmap_refuses_batchnorm() -> Measured:
    raised = error_of(lambda: _per_sample(nn.BatchNorm1d(4)))
    torch.manual_seed(0)
    apart = _per_sample(nn.GroupNorm(2, 4))
    return Measured(
        sides={
            "BatchNorm": {"raises": raised},
            "GroupNorm": {"raises": "none", "apart from single passes": apart},
        },
        conclusion=f"BatchNorm raises {raised}; with GroupNorm vmap's gradients are {apart:.1e} from those of single passes",
        holds={"BatchNorm raises": raised == "RuntimeError", "GroupNorm agrees": apart < 1e-9},
    )


def _per_sample(norm: nn.Module) -> float:
    model = nn.Sequential(nn.Linear(3, 4), norm).double()
    given: dict[str, Tensor] = dict(model.named_parameters())
    x = torch.randn(5, 3, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, parameters, one[None])
        return out.pow(2).sum() + out.sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(given, x)["0.weight"]
    single = torch.stack([torch.func.grad(loss)(given, one)["0.weight"] for one in x])
    return float((each - single).abs().max())


@experiment(
    "hooks-refuse-in-place",
    claim="A full backward hook makes a module's output a view that may not be changed in place: an in-place activation after a hooked layer raises.",
)
def hooks_refuse_in_place() -> Measured:
    plain, hooked = (error_of(partial(_changed_in_place, h)) for h in (False, True))
    return Measured(
        sides={"without a hook": {"raises": plain}, "with one": {"raises": hooked}},
        conclusion=f"adding to the output in place raises {plain} without a hook and {hooked} with one",
        holds={"without a hook it works": plain == "none", "with one it raises": hooked == "RuntimeError"},
    )  # fmt: skip


def _changed_in_place(hooked: bool) -> None:
    layer = nn.Linear(2, 2)
    if hooked:
        layer.register_full_backward_hook(lambda *_: None)
    layer(torch.ones(1, 2)).add_(1)
