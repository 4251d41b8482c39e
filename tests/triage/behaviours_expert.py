"""What experts ask about: hooks, vmap, custom functions, checkpointing policies, FSDP2, averages, loaders with a state (`backs: torch:NAME`)."""

from __future__ import annotations

import inspect
import io
import math
from typing import Any

import pytest
import torch
from tests.triage.behaviours import _alone
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


# --- hooks and gradients -------------------------------------------------------------------------------------------------------------
def a_module_hook_runs_before_parameter_gradients() -> None:
    layer = nn.Linear(3, 1)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda m, *_: seen.append(m.weight.grad))
    layer(torch.ones(1, 3)).sum().backward()
    assert seen == [None] and layer.weight.grad is not None


def a_post_accumulate_hook_has_the_gradient() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def update(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    weight.register_post_accumulate_grad_hook(update)
    (3 * weight).sum().backward()
    assert weight.grad is None and torch.equal(weight.data, torch.full((2,), -2.0))


def a_loss_that_is_made_to_require_grad_trains_nothing() -> None:
    layer = nn.Linear(2, 1)
    loss = layer(torch.ones(1, 2)).sum().detach().requires_grad_()
    loss.backward()
    assert layer.weight.grad is None


def several_losses_share_one_forward() -> None:
    layer = nn.Linear(3, 2)
    out = layer(torch.ones(4, 3))
    losses = [out[:, 0].sum(), out[:, 1].pow(2).sum()]
    apart = [torch.autograd.grad(one, layer.weight, retain_graph=True)[0] for one in losses]
    both = torch.autograd.grad(
        torch.stack(losses), layer.weight, grad_outputs=torch.eye(2), is_grads_batched=True
    )[0]
    assert torch.allclose(torch.stack(apart), both)


# --- vmap ----------------------------------------------------------------------------------------------------------------------------
def a_hook_runs_once_under_vmap() -> None:
    layer = nn.Linear(3, 1)
    calls: list[int] = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    torch.func.vmap(layer)(torch.ones(7, 3))
    assert len(calls) == 1


def vmap_hides_the_outer_graph() -> None:
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.func.vmap(lambda a: torch.autograd.grad(a * a, a)[0])(x)
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda a: a * a))(x), 2 * x)


def vmap_wants_to_know_about_randomness() -> None:
    x = torch.ones(64)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda a: torch.nn.functional.dropout(a))(x)
    different = torch.func.vmap(torch.nn.functional.dropout, randomness="different")(x)
    same = torch.func.vmap(torch.nn.functional.dropout, randomness="same")(x)
    assert different.unique().numel() == 2 and same.unique().numel() == 1


def vmap_refuses_writing_into_an_unmapped_tensor() -> None:
    def wrong(row: torch.Tensor) -> torch.Tensor:
        buffer = torch.zeros(3)
        buffer.copy_(row)
        return buffer

    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(wrong)(torch.ones(2, 3))


def jvp_pushes_one_direction_forward() -> None:
    x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    value, slope = torch.func.jvp(lambda a: (a**2).sum(), (x,), (v,))
    assert value == 5 and slope == 2


# --- custom functions ----------------------------------------------------------------------------------------------------------------
class _Old(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad[0]


class _New(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    backward = _Old.backward


def func_transforms_need_setup_context() -> None:
    x = torch.tensor([1.0, 3.0])
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda a: _Old.apply(a).sum())(x)  # type: ignore[no-untyped-call]
    found = torch.func.vmap(torch.func.grad(lambda a: _New.apply(a)))(x)  # type: ignore[no-untyped-call]
    assert torch.equal(found, 2 * x)


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        largest, where = x.max(-1)
        ctx.mark_non_differentiable(where)
        ctx.save_for_backward(where)
        ctx.size = x.shape
        return largest, where

    @staticmethod
    def backward(ctx: Any, *grad: torch.Tensor) -> torch.Tensor:
        (where,) = ctx.saved_tensors
        return torch.zeros(ctx.size).scatter_(-1, where[:, None], grad[0][:, None])


def marked_outputs_have_no_gradient() -> None:
    x = torch.tensor([[1.0, 4.0]], requires_grad=True)
    largest, where = _Marked.apply(x)  # type: ignore[no-untyped-call]
    largest.sum().backward()
    assert not where.requires_grad and x.grad is not None and x.grad.tolist() == [[0.0, 1.0]]


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, *grad: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * grad[0]


def only_saved_tensors_are_checked() -> None:
    for function, caught in ((_Old, True), (_Kept, False)):
        leaf = torch.ones(1, requires_grad=True)
        x = leaf * 1
        y = function.apply(x)  # type: ignore[no-untyped-call]
        x.data.add_(0)
        with torch.no_grad():
            x.add_(1)
        if caught:
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                y.backward()
        else:
            y.backward()
            assert leaf.grad is not None and leaf.grad.item() == 4  # wrong, and silent: it is 2


# --- checkpointing -------------------------------------------------------------------------------------------------------------------
def a_policy_decides_once_for_each_operation() -> None:
    asked: list[bool] = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        asked.append(ctx.is_recompute)
        return op == torch.ops.aten.mm.default

    weight = nn.Parameter(torch.ones(3, 3))
    x = torch.ones(2, 3)
    out = checkpoint(
        lambda a: (a @ weight).sigmoid().sum(),
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    out.backward()
    assert asked == [False] * 3  # mm, sigmoid, sum: in the forward only


def without_the_rng_state_dropout_is_drawn_anew() -> None:
    def gradient(preserve: bool) -> torch.Tensor:
        torch.manual_seed(0)
        x = torch.ones(200, requires_grad=True)
        out = checkpoint(
            lambda a: torch.nn.functional.dropout(a) * a,
            x,
            use_reentrant=False,
            preserve_rng_state=preserve,
        )
        out.sum().backward()
        assert x.grad is not None
        return (x.grad != 0) ^ (out.detach() != 0)

    assert not gradient(True).any() and gradient(False).any()


# --- FSDP2 ---------------------------------------------------------------------------------------------------------------------------
def _after_forward(reshard: bool) -> str:
    found: list[str] = []

    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model[0], mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh)
        model(torch.ones(1, 4))
        found.append(type(model[0].weight).__name__)

    _alone(body)
    return found[0]


def reshard_after_forward_frees_the_weights() -> None:
    assert _after_forward(True) == "DTensor" and _after_forward(False) != "DTensor"


def fsdp2_can_leave_gradients_unsynchronised() -> None:
    def body() -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = nn.Linear(3, 1)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        model.set_requires_gradient_sync(False)  # type: ignore[operator]
        model(torch.ones(1, 3)).sum().backward()
        assert model.weight.grad is None  # kept whole inside, not reduced
        model.set_requires_gradient_sync(True)  # type: ignore[operator]
        model(torch.ones(1, 3)).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.full_tensor().tolist() == [[2.0, 2.0, 2.0]]  # type: ignore[attr-defined]

    _alone(body)


def norms_of_shards_are_not_the_norm() -> None:
    gradient = torch.tensor([3.0, 4.0])
    shards = gradient.chunk(2)
    assert [s.norm().item() for s in shards] == [3.0, 4.0] and gradient.norm() == 5
    assert math.sqrt(sum(s.norm().item() ** 2 for s in shards)) == 5


# --- state ---------------------------------------------------------------------------------------------------------------------------
def weights_only_loads_optimizer_schedule_and_scaler() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule.step()
    scaler = torch.amp.GradScaler("cpu")
    file = io.BytesIO()
    whole = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    torch.save({k: v.state_dict() for k, v in whole.items()} | {"epoch": 3}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    for name, part in whole.items():
        part.load_state_dict(state[name])
    assert state["epoch"] == 3 and state["optimizer"]["state"][0]["exp_avg"].abs().sum() > 0


def adams_state_has_the_type_of_the_weights() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    assert optimizer.state[weight]["exp_avg_sq"].dtype == torch.bfloat16


def an_average_forgets_by_its_half_life() -> None:
    batch, images = 32, 10_000
    decay = 0.5 ** (batch / images)
    assert math.isclose(decay ** (images / batch), 0.5)
    assert 0.99 < decay < 1 and math.isclose(1 / (1 - 0.999), 1000)


def an_average_of_shrunk_weights_shrinks_later() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1, weight_decay=1.0)
    average = torch.optim.swa_utils.AveragedModel(
        nn.ParameterList([weight]), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    for _ in range(20):
        weight.grad = torch.zeros(1)
        optimizer.step()
        average.update_parameters(nn.ParameterList([weight]))
    (kept,) = average.module.parameters()
    assert weight.item() < kept.item() < 1  # only the optimizer decays; the average follows


# --- loaders and the Trainer ---------------------------------------------------------------------------------------------------------
def stateful_loaders_snapshot_every_batch() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    given = inspect.signature(StatefulDataLoader.__init__).parameters
    assert given["snapshot_every_n_steps"].default == 1


def a_stateful_loader_asks_an_iterable_for_its_state() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Stream(torch.utils.data.IterableDataset[int]):
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Any:
            while self.at < 10:
                self.at += 1
                yield self.at - 1

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    loader = StatefulDataLoader(Stream(), batch_size=None)
    it = iter(loader)
    first = [next(it) for _ in range(4)]
    state = loader.state_dict()
    again = StatefulDataLoader(Stream(), batch_size=None)
    again.load_state_dict(state)
    assert first == [0, 1, 2, 3] and next(iter(again)) == 4


def the_trainer_asks_whether_a_model_takes_the_count() -> None:
    from transformers import Trainer

    source = inspect.getsource(Trainer)
    assert "model_accepts_loss_kwargs" in source and "num_items_in_batch" in source


def graphed_callables_have_limits() -> None:
    said = str(torch.cuda.make_graphed_callables.__doc__)
    assert "higher order differentiation" in said and "requires_grad=False" in said


def mixing_layouts_is_allowed() -> None:
    one = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    two = torch.randn(2, 3, 4, 4)
    assert (one + two).shape == one.shape == (2, 3, 4, 4)
    assert torch.equal(one[:, 0], one.contiguous()[:, 0])
