"""What the choice between two losses, layers or functions changes, as claims say (claims/loss-choices.md, either-or.md): each function executes one behaviour."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def cross_entropy_is_log_softmax_and_nll() -> None:
    logits, targets = torch.randn(8, 5), torch.randint(5, (8,))
    assert torch.allclose(
        F.cross_entropy(logits, targets), F.nll_loss(logits.log_softmax(1), targets)
    )


def a_relu_output_cannot_be_negative() -> None:
    layer = nn.Linear(2, 1)
    nn.init.constant_(layer.bias, -10.0)
    out = layer(torch.zeros(4, 2)).relu()
    F.mse_loss(out, torch.full((4, 1), -1.0)).backward()
    assert layer.bias.grad is not None and layer.bias.grad.item() == 0.0 and out.max() == 0


def softmax_keeps_the_order() -> None:
    logits = torch.randn(16, 7)
    assert torch.equal(logits.argmax(1), logits.softmax(1).argmax(1))
    assert torch.equal(logits[:, 0] > 0, logits[:, 0].sigmoid() > 0.5)


def sigmoids_do_not_compete() -> None:
    logits = torch.tensor([[4.0, 4.0, -4.0]])
    assert (logits.sigmoid() > 0.9).sum() == 2 and (logits.softmax(1) > 0.9).sum() == 0


def bce_weight_scales_both_sides() -> None:
    logits = torch.zeros(2, 1)
    for label in (0.0, 1.0):
        target = torch.full((2, 1), label)
        plain = F.binary_cross_entropy_with_logits(logits, target)
        weighted = F.binary_cross_entropy_with_logits(logits, target, weight=torch.tensor([3.0]))
        positive = F.binary_cross_entropy_with_logits(
            logits, target, pos_weight=torch.tensor([3.0])
        )
        assert torch.allclose(weighted, 3 * plain)
        assert torch.allclose(positive, (3 if label else 1) * plain)


def a_free_loss_weight_goes_to_zero() -> None:
    losses = torch.tensor([4.0, 0.5])
    free, s = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([free, s], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        (
            (free * losses[0] + (1 - free) * losses[1]) + (torch.exp(-s) * losses + s).sum()
        ).backward()
        optimizer.step()
    assert free < 0  # below any sensible weight
    assert torch.allclose(torch.exp(-s), 1 / losses, atol=0.05)


def weighted_means_need_their_sum() -> None:
    each, weights = torch.tensor([1.0, 1.0]), torch.tensor([10.0, 30.0])
    assert (each * weights).mean() == 20.0 and (each * weights).sum() / weights.sum() == 1.0


def bce_of_grey_targets_has_a_floor() -> None:
    grey = torch.full((4,), 0.3)
    assert F.binary_cross_entropy(grey, grey) > 0.6 > F.mse_loss(grey, grey) == 0


def mse_wants_the_mean_l1_the_median() -> None:
    values = torch.tensor([0.0, 0.0, 10.0])
    grid = torch.linspace(0, 10, 1001)
    mse = grid[((values[:, None] - grid) ** 2).mean(0).argmin()]
    mae = grid[(values[:, None] - grid).abs().mean(0).argmin()]
    assert abs(mse - 10 / 3) < 0.01 and mae == 0


def huber_limits_the_gradient() -> None:
    error = torch.tensor([0.5, 100.0], requires_grad=True)
    F.huber_loss(error, torch.zeros(2), reduction="sum").backward()
    assert error.grad is not None and error.grad.tolist() == [0.5, 1.0]


def cosine_loss_ignores_length() -> None:
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    assert torch.allclose(F.cosine_similarity(a, b), F.cosine_similarity(5 * a, b), atol=1e-5)
    same = F.cosine_embedding_loss(a, 3 * a, torch.ones(4))
    other = F.cosine_embedding_loss(a, 3 * a, -torch.ones(4))
    assert same < 1e-5 < 0.9 < other


def cross_entropy_ignores_distance() -> None:
    logits = torch.zeros(1, 5)
    logits[0, 0] = 4.0
    one, four = (F.cross_entropy(logits, torch.tensor([k])) for k in (1, 4))
    assert torch.equal(one, four)


def masked_means_skip_nan() -> None:
    out = torch.zeros(3, requires_grad=True)
    wanted = torch.tensor([1.0, float("nan"), 2.0])
    known = ~wanted.isnan()
    ((out - wanted).pow(2) * known).nansum().backward()
    assert out.grad is not None and out.grad.isnan().any()
    out.grad = None
    (out[known] - wanted[known]).pow(2).mean().backward()
    assert out.grad is not None and bool(torch.Tensor.isfinite(out.grad).all())


def layernorm_does_not_see_the_batch() -> None:
    x = torch.randn(4, 8)
    norm, across = nn.LayerNorm(8), nn.BatchNorm1d(8)
    assert torch.allclose(norm(x)[:1], norm(x[:1]), atol=1e-6)
    assert not torch.allclose(across(x)[:2], across(x[:2]), atol=1e-2)


def norm_first_keeps_the_residual() -> None:
    x = 100 * torch.randn(1, 3, 16)
    pre, post = (
        nn.TransformerEncoderLayer(16, 2, batch_first=True, norm_first=first, dropout=0.0)
        for first in (True, False)
    )
    assert (pre(x) - x).norm() < 0.2 * x.norm() and post(x).std() < 2


def rmsnorm_keeps_the_mean() -> None:
    x = torch.randn(2, 64) + 3
    assert nn.LayerNorm(64)(x).mean().abs() < 1e-5 < 0.5 < nn.RMSNorm(64)(x).mean()


def a_bias_before_batchnorm_does_nothing() -> None:
    x, norm = torch.randn(8, 3), nn.BatchNorm1d(3)
    assert torch.allclose(norm(x), norm(x + 5), atol=1e-5)


def a_gru_has_three_quarters_of_the_parameters() -> None:
    gru, lstm = (sum(p.numel() for p in kind(8, 16).parameters()) for kind in (nn.GRU, nn.LSTM))
    assert 4 * gru == 3 * lstm


def global_pooling_takes_any_size() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    assert net(torch.randn(1, 3, 20, 20)).shape == net(torch.randn(1, 3, 33, 47)).shape == (1, 2)


def a_padded_mean_needs_the_mask() -> None:
    hidden = torch.ones(1, 4, 2)
    hidden[0, 2:] = 0  # padding
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).unsqueeze(-1)
    assert hidden.mean(1)[0, 0] == 0.5 and ((hidden * mask).sum(1) / mask.sum(1))[0, 0] == 1.0


def adding_is_concatenating_with_shared_weights() -> None:
    a, b, layer = torch.randn(2, 4), torch.randn(2, 4), nn.Linear(4, 3)
    both = nn.Linear(8, 3)
    both.weight.data = torch.cat([layer.weight, layer.weight], 1).detach()
    both.bias.data = layer.bias.data
    assert torch.allclose(layer(a + b), both(torch.cat([a, b], 1)), atol=1e-5)


def functional_dropout_ignores_eval() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x, 0.5)

    x = torch.ones(100)
    assert (Net().eval()(x) == 0).any() and torch.equal(nn.Dropout(0.5).eval()(x), x)


def buffers_are_saved_and_not_trained() -> None:
    norm = nn.BatchNorm1d(2)
    assert "running_mean" in norm.state_dict()
    assert "running_mean" not in dict(norm.named_parameters())


def modules_in_a_plain_list_are_lost() -> None:
    class Net(nn.Module):
        def __init__(self, kind: type) -> None:
            super().__init__()
            self.layers = kind([nn.Linear(2, 2)])

    assert not list(Net(list).parameters()) and list(Net(nn.ModuleList).parameters())


def stack_makes_a_dimension() -> None:
    a = torch.ones(3, 4)
    assert torch.stack([a, a]).shape == (2, 3, 4) and torch.cat([a, a]).shape == (6, 4)


def a_state_dict_needs_the_class() -> None:
    import io

    buffer = io.BytesIO()
    torch.save(nn.Linear(2, 2), buffer)
    buffer.seek(0)
    try:
        torch.load(buffer)  # the whole module is not among the safe types
    except Exception as error:
        assert "Weights only" in str(error)
    else:
        raise AssertionError
    buffer = io.BytesIO()
    torch.save(nn.Linear(2, 2).state_dict(), buffer)
    buffer.seek(0)
    assert set(torch.load(buffer)) == {"weight", "bias"}


def an_embedding_is_a_one_hot_product() -> None:
    table, index = nn.Embedding(5, 3), torch.tensor([4, 1])
    assert torch.allclose(table(index), F.one_hot(index, 5).float() @ table.weight)


def standardised_inputs_learn_faster() -> None:
    x = torch.randn(128, 2) * torch.tensor([1.0, 30.0]) + torch.tensor([0.0, 100.0])
    y = (x[:, :1] > 0).float()

    def loss(features: torch.Tensor) -> float:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            optimizer.zero_grad()
            value = F.binary_cross_entropy_with_logits(model(features), y)
            value.backward()
            optimizer.step()
        return value.item()

    assert loss((x - x.mean(0)) / x.std(0)) < 0.5 < loss(x)
