"""Errors of autograd, shapes, modules and optimizers, provoked. A function's name is its claim's."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Lin = nn.Linear
ones, randn = torch.ones, torch.randn


# --- autograd ------------------------------------------------------------------------------------------------------------------------
def retain_graph() -> None:
    loss = (ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def inplace_modified() -> None:
    y = randn(3, requires_grad=True).relu()
    y += 1
    y.sum().backward()


def inplace_by_step() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    before = model(torch.ones(1, 2)).sum()
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    before.backward()


def inplace_leaf() -> None:
    ones(2, requires_grad=True).add_(1)


def no_grad_fn() -> None:
    ones(2).sum().backward()


def scalar_outputs() -> None:
    (ones(2, requires_grad=True) * 2).backward()


def unused_in_graph() -> None:
    a, b = ones(1, requires_grad=True), ones(1, requires_grad=True)
    torch.autograd.grad((a * 2).sum(), b)


def numpy_requires_grad() -> None:
    ones(2, requires_grad=True).numpy()


def deepcopy_non_leaf() -> None:
    copy.deepcopy(ones(2, requires_grad=True) * 2)


def int_requires_grad() -> None:
    torch.tensor([1, 2], requires_grad=True)


def requires_grad_non_leaf() -> None:
    (ones(2, requires_grad=True) * 2).requires_grad = False


def view_of_leaf_inplace() -> None:
    ones(2, 2, requires_grad=True)[0].add_(1)


def once_differentiable() -> None:
    from torch.autograd.function import once_differentiable as once

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.saved_tensors[0] * g

    x = ones(1, requires_grad=True)
    (grad,) = torch.autograd.grad(Square.apply(x) * x, x, create_graph=True)
    grad.backward()


def backward_arity() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    Two.apply(ones(1, requires_grad=True), ones(1)).backward()


def backward_wrong_shape() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return ones(7)

    Wrong.apply(ones(3, requires_grad=True)).backward()


def legacy_function() -> None:
    class Old(torch.autograd.Function):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    Old()(ones(1))


def gradcheck_float32() -> None:
    torch.autograd.gradcheck(lambda x: x**3 * 100, (randn(3, requires_grad=True),))


def anomaly_nan() -> None:
    x = torch.zeros(1, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (torch.log(x) * 0).sum().backward()


def sqrt_zero() -> None:
    x = torch.zeros(2, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        (x.sqrt() * 0).sum().backward()


def inference_mode_targets() -> None:
    with torch.inference_mode():
        t = ones(2)
    (ones(2, requires_grad=True) * t).sum().backward()


def inference_inplace() -> None:
    with torch.inference_mode():
        t = ones(2)
    t.add_(1)


def hooks_inplace() -> None:
    layer = Lin(2, 2)
    layer.register_full_backward_hook(lambda *a: None)
    out = layer(ones(1, 2))
    out += 1


def vmap_batchnorm() -> None:
    bn = nn.BatchNorm1d(3)
    torch.func.vmap(lambda x: bn(x[None]))(randn(4, 3, 5))


def vmap_random() -> None:
    torch.func.vmap(lambda x: F.dropout(x, training=True))(ones(3, 2))


def vmap_item() -> None:
    torch.func.vmap(lambda x: x * x.item())(ones(3))


def checkpoint_mismatch() -> None:
    from torch.utils.checkpoint import checkpoint

    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin().cos() if len(calls) == 1 else x.sin()

    checkpoint(block, ones(2, requires_grad=True), use_reentrant=False).sum().backward()


def checkpoint_reentrant_flag() -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(Lin(2, 2), ones(1, 2, requires_grad=True))


def unet_lora_const() -> None:
    from torch.utils.checkpoint import checkpoint

    checkpoint(Lin(2, 2), ones(1, 2), use_reentrant=True)


# --- shapes and types ------------------------------------------------------------------------------------------------------------------
def shape_mismatch() -> None:
    Lin(512, 10)(ones(32, 400))


def shape_broadcast() -> None:
    ones(2, 77) + ones(2, 64)


def conv_channels() -> None:
    nn.Conv2d(3, 64, 7)(ones(8, 1, 224, 224))


def kernel_larger_than_input() -> None:
    nn.Conv2d(3, 4, 5)(ones(1, 3, 2, 2))


def view_not_contiguous() -> None:
    ones(2, 3).t().view(6)


def reshape_invalid() -> None:
    ones(6).view(4, 2)


def cat_sizes() -> None:
    torch.cat([ones(2, 3), ones(2, 4)], 0)


def stack_sizes() -> None:
    torch.stack([ones(3), ones(4)])


def expected_long() -> None:
    F.cross_entropy(randn(4, 3), ones(4))


def target_out_of_bounds() -> None:
    F.cross_entropy(randn(2, 10), torch.tensor([1, 10]))


def embedding_index() -> None:
    nn.Embedding(10, 4)(torch.tensor([10]))


def index_out_of_bounds() -> None:
    ones(3)[5]


def ce_batch_mismatch() -> None:
    F.cross_entropy(randn(4, 3), torch.zeros(5, dtype=torch.long))


def ce_multi_target() -> None:
    F.cross_entropy(randn(4, 3), torch.zeros(4, 1, dtype=torch.long))


def bce_shapes() -> None:
    F.binary_cross_entropy_with_logits(randn(4, 1), ones(4))


def bce_range() -> None:
    F.binary_cross_entropy(torch.tensor([1.5]), ones(1))


def mse_broadcast() -> None:
    F.mse_loss(randn(4, 1), randn(4))


def dtype_mismatch() -> None:
    Lin(2, 2)(ones(1, 2, dtype=torch.float64))


def result_type_cast() -> None:
    x = torch.ones(2, dtype=torch.long)
    x += 0.5


def mean_of_integers() -> None:
    torch.tensor([1, 2]).mean()


def bool_ambiguous() -> None:
    bool(ones(2) > 0)


def item_of_many() -> None:
    ones(2).item()


def half_not_implemented() -> None:
    torch.ones(2, 2, dtype=torch.int32).softmax(-1)


def batchnorm_one() -> None:
    nn.BatchNorm2d(256)(ones(1, 256, 1, 1))


def rnn_hidden_size() -> None:
    nn.LSTM(4, 8)(ones(5, 2, 4), (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)))


def attention_mask_shape() -> None:
    nn.MultiheadAttention(8, 2)(
        ones(4, 1, 8), ones(4, 1, 8), ones(4, 1, 8), attn_mask=torch.zeros(3, 3)
    )


def attention_heads() -> None:
    nn.MultiheadAttention(10, 3)


def group_norm_groups() -> None:
    nn.GroupNorm(3, 8)


def grid_negative_dim() -> None:
    ones(2, 3).sum(dim=2)


def list_to_tensor() -> None:
    torch.tensor([[1, 2], [3]])


def numpy_object() -> None:
    import numpy

    torch.from_numpy(numpy.array(["a"], dtype=object))


# --- modules and optimizers ------------------------------------------------------------------------------------------------------------
def modules_in_list() -> None:
    torch.optim.SGD([], lr=0.1)


def optimizer_generator_params() -> None:
    torch.optim.SGD(Lin(2, 2).weight, lr=0.1)


def optimizer_non_leaf() -> None:
    torch.optim.SGD([Lin(2, 2).weight * 2], lr=0.1)


def optimizer_negative_lr() -> None:
    torch.optim.Adam(Lin(2, 2).parameters(), lr=-1)


def optimizer_duplicate_params() -> None:
    p = nn.Parameter(ones(1))
    torch.optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)


def optimizer_state_groups() -> None:
    a, b = Lin(2, 2), Lin(2, 2)
    state = torch.optim.SGD(a.parameters(), lr=0.1).state_dict()
    torch.optim.SGD([{"params": b.weight}, {"params": b.bias}], lr=0.1).load_state_dict(state)


def optimizer_state_size() -> None:
    state = torch.optim.SGD(Lin(2, 2).parameters(), lr=0.1).state_dict()
    torch.optim.SGD([Lin(2, 2).weight], lr=0.1).load_state_dict(state)


def lbfgs_closure() -> None:
    torch.optim.LBFGS(Lin(2, 2).parameters()).step()


def missing_super_init() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layer = Lin(2, 2)

    Net()


def missing_forward() -> None:
    class Net(nn.Module):
        pass

    Net()(1)


def no_attribute_module() -> None:
    getattr(Lin(2, 2), "hid" + "den")


def assign_tensor_to_parameter() -> None:
    Lin(2, 2).weight = ones(2, 2)


def scheduler_and_skips() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    s.step()
    o.step()


def scheduler_epoch_argument() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.StepLR(o, 1)
    o.step()
    s.step(3)


def onecycle_too_many() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    s = torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=1)
    for _ in range(3):
        o.step()
        s.step()


def plateau_metrics() -> None:
    o = torch.optim.SGD([nn.Parameter(ones(1))], lr=0.1)
    torch.optim.lr_scheduler.ReduceLROnPlateau(o).step()


def clip_nonfinite_raises() -> None:
    p = nn.Parameter(ones(1))
    p.grad = torch.tensor([float("nan")])
    torch.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
