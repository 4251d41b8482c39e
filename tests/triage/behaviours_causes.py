"""What the causes in pasted programs (`points/causes.md`) rest on."""

from __future__ import annotations

import inspect
import warnings

import torch
from torch import nn
from torch.nn import functional as F


def cross_entropy_of_one_unit_is_zero() -> None:
    logits = torch.randn(6, 1, requires_grad=True)
    loss = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and not logits.grad.any()
    assert torch.equal(logits.softmax(1), torch.ones(6, 1))


def squared_error_of_a_sigmoid_hardly_moves() -> None:
    target = F.one_hot(torch.tensor([3]), 10).float()
    share = torch.full((1, 10), 0.1).logit().requires_grad_()
    (squared,) = torch.autograd.grad(F.mse_loss(share.sigmoid(), target), share)
    logits = torch.zeros(1, 10, requires_grad=True)
    (entropy,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([3])), logits)
    assert squared[0, 3].abs() * 40 < entropy[0, 3].abs()
    # over labels that are spread evenly, the share of each class is the constant with the least error
    labels = torch.eye(10)
    assert F.mse_loss(torch.full((10, 10), 0.1), labels) < F.mse_loss(torch.full((10, 10), 0.2), labels)  # fmt: skip


def a_relu_at_the_end_stops_learning() -> None:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.bias.fill_(-100.0)
    F.mse_loss(F.relu(layer(torch.randn(5, 3))), torch.ones(5, 2)).backward()
    assert layer.weight.grad is not None and not layer.weight.grad.any()


def batchnorm_at_the_end_depends_on_the_batch() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    x = torch.randn(8, 3)
    out = net(x)
    assert torch.allclose(out.mean(0), torch.zeros(2), atol=1e-5)
    assert not torch.allclose(net(x[:4]), out[:4])


def dropout_at_the_end_zeroes_outputs() -> None:
    out = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))(torch.randn(8, 3))
    assert 0.3 < (out == 0).float().mean() < 0.7


def nll_of_probabilities_is_negative() -> None:
    logits, labels = torch.randn(6, 4), torch.randint(0, 4, (6,))
    assert F.nll_loss(logits.softmax(1), labels) < 0
    assert torch.allclose(F.nll_loss(logits.log_softmax(1), labels), F.cross_entropy(logits, labels))  # fmt: skip


def equal_units_stay_equal() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    for layer in (net[0], net[2]):
        nn.init.constant_(layer.weight, 0.1)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(net(torch.randn(16, 3)), torch.randn(16, 1)).backward()
        optimizer.step()
    assert (net[0].weight - net[0].weight[0]).abs().max() < 1e-6


def without_batch_first_the_second_axis_is_the_batch() -> None:
    x = torch.randn(8, 5, 4)  # batch, time, features
    assert nn.LSTM(4, 6, batch_first=True)(x)[0].shape == (8, 5, 6)
    mixed = nn.LSTM(4, 6)
    out = mixed(x)[0]
    changed = x.clone()
    changed[0] += 1.0  # the first example changes what comes out for the others
    assert not torch.allclose(mixed(changed)[0][1:], out[1:])


def argmax_of_axis_0_is_an_example() -> None:
    logits = torch.randn(8, 3)
    assert logits.argmax(dim=0).shape == (3,) and logits.argmax(dim=1).shape == (8,)


def logits_are_cut_at_zero() -> None:
    logits = torch.tensor([0.2, -0.2, 3.0])
    assert torch.equal((logits > 0), (logits.sigmoid() > 0.5))
    assert not torch.equal((logits > 0.5), (logits.sigmoid() > 0.5)) and logits.round()[2] == 3


def training_mode_changes_predictions() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    x = torch.randn(8, 3)
    with torch.no_grad():
        before = net[1].running_mean.clone()
        assert not torch.equal(net(x), net(x)) and not torch.equal(net[1].running_mean, before)
        net.eval()
        assert torch.equal(net(x), net(x))


def random_transforms_change_what_is_measured() -> None:
    image = torch.rand(3, 16, 16)

    def crop() -> torch.Tensor:
        at = int(torch.randint(0, 8, ()))
        return image[:, at : at + 8, at : at + 8]

    assert len({float(crop().sum()) for _ in range(20)}) > 1  # the same image, several inputs


def a_second_fit_is_another_scale() -> None:
    train, test = torch.randn(100), torch.randn(100) * 2 + 3
    again = (test - test.mean()) / test.std()
    assert (again - (test - train.mean()) / train.std()).abs().mean() > 1


def each_summand_keeps_its_graph() -> None:
    layer, kept = nn.Linear(4, 1), []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            kept.append(ctx)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad

    total = sum(Watched.apply(layer(torch.randn(1, 4))).sum() for _ in range(5))  # type: ignore[no-untyped-call]
    assert len(kept) == 5 and all(c.saved_tensors for c in kept)
    assert isinstance(total, torch.Tensor)
    total.backward()
    one = layer.weight.grad
    assert one is not None


def retain_graph_keeps_the_graph() -> None:
    x = torch.randn(3, requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()  # what it needs was still there
    try:
        y.backward()
    except RuntimeError as error:
        assert "second time" in str(error)
    else:
        raise AssertionError


def evaluation_without_no_grad_keeps_graphs() -> None:
    net = nn.Linear(3, 2).eval()
    assert net(torch.randn(1, 3)).grad_fn is not None
    with torch.no_grad():
        assert net(torch.randn(1, 3)).grad_fn is None


def anomaly_mode_records_a_traceback() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(check_nan=True):
            out = torch.ones(1, requires_grad=True) * 2
    assert "traceback_" in out.grad_fn.metadata  # type: ignore[union-attr]


def one_pass_for_the_batch() -> None:
    net, x, y = nn.Linear(3, 1), torch.randn(8, 3), torch.randn(8, 1)
    (together,) = torch.autograd.grad(F.mse_loss(net(x), y), net.weight)
    apart = [torch.autograd.grad(F.mse_loss(net(x[i]), y[i]), net.weight)[0] for i in range(8)]
    assert torch.allclose(together, torch.stack(apart).mean(0), atol=1e-6)


def half_weights_lose_updates() -> None:
    one = torch.ones(1, dtype=torch.float16)
    assert torch.equal(one + 1e-4, one) and torch.tensor(1e-8).half() == 0
    assert torch.tensor(7e4).half().isinf()


def one_batch_is_noise() -> None:
    losses = torch.rand(1000)
    assert losses[:1000].reshape(-1, 4).mean(1).std() > 3 * losses.reshape(-1, 100).mean(1).std()


def strong_decay_pulls_weights_to_zero() -> None:
    x, y = torch.randn(64, 3), torch.randn(64, 1)
    sizes = []
    for decay in (0.0, 0.5):
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=decay)
        for _ in range(300):
            optimizer.zero_grad()
            F.mse_loss(net(x), y + x.sum(1, keepdim=True)).backward()
            optimizer.step()
        sizes.append(net.weight.norm().item())
    # an Adam step goes by the sign of the sum, so half of the loss's pull is enough
    assert sizes[1] < 0.9 * sizes[0]


def a_high_rate_kills_units() -> None:
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0)
    x, y = torch.randn(64, 10), torch.randn(64, 1)
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    calm = F.mse_loss(torch.zeros_like(y), y).item()
    assert F.mse_loss(net(x), y).item() > calm or (net[0](x) <= 0).float().mean() > 0.6


def plain_sgd_crawls() -> None:
    x, y = torch.randn(64, 10), torch.randint(0, 2, (64,)).float()
    ends = []
    for optimizer_of in (
        lambda p: torch.optim.SGD(p, lr=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ):
        torch.manual_seed(0)
        net = nn.Linear(10, 1)
        optimizer = optimizer_of(net.parameters())
        first = F.binary_cross_entropy_with_logits(net(x).squeeze(1), y).item()
        for _ in range(100):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(net(x).squeeze(1), y).backward()
            optimizer.step()
        ends.append(first - F.binary_cross_entropy_with_logits(net(x).squeeze(1), y).item())
    assert ends[1] > 5 * ends[0] > 0


def linear_layers_without_activation_are_one() -> None:
    one, two = nn.Linear(3, 8), nn.Linear(8, 2)
    x = torch.randn(5, 3)
    whole = x @ (two.weight @ one.weight).T + two.weight @ one.bias + two.bias
    assert torch.allclose(two(one(x)), whole, atol=1e-5)


def saturation_vanishes() -> None:
    x = torch.linspace(-8, 8, 100, requires_grad=True)
    (slope,) = torch.autograd.grad(x.sigmoid().sum(), x)
    assert slope.max() <= 0.25 and slope[0] < 1e-3


def sorted_batches_hold_one_class() -> None:
    labels = torch.tensor([0] * 32 + [1] * 32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(labels), batch_size=16)
    assert all(len(set(batch.tolist())) == 1 for (batch,) in loader)


def shifted_inputs_slow_learning() -> None:
    def condition(x: torch.Tensor) -> float:
        return float(torch.linalg.cond(x.T @ x / len(x)))

    x = torch.rand(500, 20)
    assert condition(x) > 10 * condition((x - x.mean(0)) / x.std(0))


def sum_scales_with_batch() -> None:
    net, x, y = nn.Linear(3, 1), torch.randn(8, 3), torch.randn(8, 1)
    (total,) = torch.autograd.grad(F.mse_loss(net(x), y, reduction="sum"), net.weight)
    (mean,) = torch.autograd.grad(F.mse_loss(net(x), y), net.weight)
    assert torch.allclose(total, 8 * mean, rtol=1e-4)


def recurrent_gradients_grow() -> None:
    cell = nn.RNN(4, 4, nonlinearity="relu")
    with torch.no_grad():
        cell.weight_hh_l0.copy_(1.5 * torch.eye(4))
    norms = []
    for length in (5, 40):
        x = torch.rand(length, 1, 4)
        (grad,) = torch.autograd.grad(cell(x)[0][-1].sum(), cell.weight_hh_l0)
        norms.append(grad.norm().item())
    assert norms[1] > 1000 * norms[0]


def without_workers_loading_waits() -> None:
    default = inspect.signature(torch.utils.data.DataLoader.__init__).parameters["num_workers"]
    assert default.default == 0


def without_a_step_nothing_changes() -> None:
    net = nn.Linear(3, 1)
    before = net.weight.clone()
    for _ in range(3):
        F.mse_loss(net(torch.randn(4, 3)), torch.randn(4, 1))
    assert torch.equal(net.weight, before)


def a_bidirectional_layer_sees_what_follows() -> None:
    both, one = nn.LSTM(1, 4, bidirectional=True), nn.LSTM(1, 4)
    x = torch.randn(6, 1, 1)
    later = x.clone()
    later[-1] += 1.0  # the last step changes
    assert not torch.allclose(both(later)[0][0], both(x)[0][0])
    assert torch.equal(one(later)[0][0], one(x)[0][0])


def _mean_after(norm: nn.BatchNorm1d) -> float:
    norm(torch.randn(4, 1))
    assert norm.running_mean is not None
    return norm.running_mean.item()


def a_large_momentum_follows_the_last_batch() -> None:
    drifts = []
    for momentum in (0.1, 0.9):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(1, momentum=momentum)
        means = [_mean_after(norm) for _ in range(300)]
        drifts.append(torch.tensor(means[100:]).std().item())
    assert drifts[1] > 2 * drifts[0]
