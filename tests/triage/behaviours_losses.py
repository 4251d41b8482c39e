"""What losses and metrics do, as claims say they do: each function executes one behaviour (`backs: torch:NAME` names it)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def class_weights_are_divided_out() -> None:
    logits, targets = torch.randn(6, 2), torch.tensor([0, 0, 0, 0, 0, 1])
    weights = torch.tensor([0.6, 3.0])
    each = F.cross_entropy(logits, targets, reduction="none")
    mean = (weights[targets] * each).sum() / weights[targets].sum()
    assert torch.allclose(F.cross_entropy(logits, targets, weight=weights), mean)
    assert torch.allclose(
        F.cross_entropy(logits, targets, weight=10 * weights), mean
    )  # only their ratio counts


def pos_weight_multiplies_the_positives() -> None:
    logits, targets = torch.tensor([0.3, -0.2]), torch.tensor([1.0, 0.0])
    plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    heavy = F.binary_cross_entropy_with_logits(
        logits, targets, reduction="none", pos_weight=torch.tensor(3.0)
    )
    assert torch.allclose(heavy, plain * torch.tensor([3.0, 1.0]))


def _focal(logits: torch.Tensor, targets: torch.Tensor, gamma: float) -> torch.Tensor:
    loss = F.cross_entropy(logits, targets, reduction="none")
    return (1 - torch.exp(-loss)) ** gamma * loss


def focal_with_gamma_zero_is_cross_entropy() -> None:
    logits, targets = torch.randn(8, 3), torch.randint(0, 3, (8,))
    assert torch.allclose(_focal(logits, targets, 0.0).mean(), F.cross_entropy(logits, targets))


def focal_damps_easy_samples() -> None:
    easy = torch.log(torch.tensor([[0.9, 0.1]]))
    ratio = F.cross_entropy(easy, torch.tensor([0])) / _focal(easy, torch.tensor([0]), 2.0)
    assert float(ratio) == pytest.approx(100, rel=0.01)


def a_power_below_one_has_infinite_slope_at_zero() -> None:
    for gamma, finite in ((0.5, False), (1.0, True), (2.0, True)):
        p = torch.ones(1, requires_grad=True)
        (-((1 - p) ** gamma) * torch.log(p)).sum().backward()
        assert p.grad is not None and bool(torch.isfinite(p.grad).all()) is finite


def _dice(p: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return 1 - (2 * (p * mask).sum() + 1e-6) / (p.sum() + mask.sum() + 1e-6)


def dice_of_no_overlap_is_one() -> None:
    mask = torch.tensor([0.0] * 98 + [1.0, 1.0])
    assert float(_dice(1 - mask, mask)) > 0.99 and float(_dice(mask, mask)) < 0.01
    background = torch.full((100,), 0.02)  # BCE is low all the same
    assert F.binary_cross_entropy(background, mask) < 0.15 < 0.9 < _dice(background, mask)
    one_false_positive = torch.tensor([1.0] + [0.0] * 99)  # against an empty mask
    assert float(_dice(one_false_positive, torch.zeros(100))) > 0.99


def dice_needs_probabilities() -> None:
    mask = torch.tensor([1.0, 0.0])
    logits = torch.tensor([4.0, -4.0])
    assert 0 <= float(_dice(logits.sigmoid(), mask)) <= 1
    assert not 0 <= float(_dice(logits, mask)) <= 1


def a_density_can_exceed_one() -> None:
    narrow = torch.distributions.Normal(0.0, 0.01)
    assert -narrow.log_prob(torch.tensor(0.0)) < 0
    assert F.binary_cross_entropy_with_logits(torch.tensor([3.0]), torch.tensor([255.0])) < 0


def label_smoothing_has_a_floor() -> None:
    logits = torch.full((1, 10), math.log(0.01))
    logits[0, 0] = math.log(0.91)
    smooth = F.cross_entropy(logits, torch.tensor([0]), label_smoothing=0.1)
    assert float(smooth) == pytest.approx(0.5, abs=0.01)
    for scale in (0.5, 2.0):  # neither less nor more confidence is better
        assert F.cross_entropy(scale * logits, torch.tensor([0]), label_smoothing=0.1) > smooth


def reduction_sets_the_size() -> None:
    x, y = torch.randn(4, 100), torch.randn(4, 100)
    assert torch.allclose(F.mse_loss(x, y, reduction="sum"), 400 * F.mse_loss(x, y))


def argmax_has_no_gradient() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    assert not (logits.argmax(1) == 0).float().mean().requires_grad


def cross_entropy_gradient_is_softmax_minus_target() -> None:
    logits, targets = torch.randn(5, 3, requires_grad=True), torch.randint(0, 3, (5,))
    F.cross_entropy(logits, targets).backward()
    wanted = (logits.softmax(1) - F.one_hot(targets, 3)) / 5
    assert logits.grad is not None and torch.allclose(logits.grad, wanted, atol=1e-6)


def kl_div_wants_log_probabilities() -> None:
    p = torch.randn(4, 5).softmax(1)
    assert float(F.kl_div(p.log(), p, reduction="batchmean")) == pytest.approx(0, abs=1e-6)
    assert F.kl_div(p, p, reduction="batchmean") < -0.1  # probabilities as input
    q = torch.randn(4, 5).log_softmax(1)
    mean, batch = (
        F.kl_div(q, p, reduction="none").mean(),
        F.kl_div(q, p, reduction="batchmean"),
    )
    assert torch.allclose(5 * mean, batch)


def ctc_needs_enough_steps() -> None:
    steps = torch.randn(3, 1, 4).log_softmax(2)
    fits = F.ctc_loss(steps, torch.tensor([[1, 2, 3]]), torch.tensor([3]), torch.tensor([3]))
    repeated = F.ctc_loss(steps, torch.tensor([[1, 1, 2]]), torch.tensor([3]), torch.tensor([3]))
    assert torch.isfinite(fits) and torch.isinf(repeated)  # a repeat needs a blank between


def a_collapsed_triplet_costs_the_margin() -> None:
    one_point = torch.ones(4, 8)
    assert float(F.triplet_margin_loss(one_point, one_point, one_point, margin=0.3)) == (
        pytest.approx(0.3, abs=1e-4)
    )


def beyond_the_margin_no_gradient() -> None:
    distance = torch.tensor([0.2, 1.5], requires_grad=True)
    F.relu(1.0 - distance).square().sum().backward()
    assert distance.grad is not None and distance.grad[0] < 0 and distance.grad[1] == 0


def infonce_starts_at_the_log_of_the_batch() -> None:
    a, b = (F.normalize(torch.randn(256, 512), dim=1) for _ in range(2))
    assert float(F.cross_entropy(a @ b.T / 0.5, torch.arange(256))) == (
        pytest.approx(math.log(256), abs=0.1)
    )


def an_undecided_discriminator_costs_ln4() -> None:
    zero = torch.zeros(4)
    real = F.binary_cross_entropy_with_logits(zero, torch.ones(4))
    fake = F.binary_cross_entropy_with_logits(zero, torch.zeros(4))
    assert float(real + fake) == pytest.approx(math.log(4), abs=1e-5)
    assert float(F.relu(1 - zero).mean() + F.relu(1 + zero).mean()) == 2


def an_unused_row_gets_no_gradient() -> None:
    table = nn.Parameter(torch.tensor([[0.0], [10.0]]))
    x = torch.tensor([[0.1], [-0.2]])
    nearest = (x - table.T).abs().argmin(1)
    F.mse_loss(table[nearest], x).backward()
    assert table.grad is not None and table.grad[0] != 0 and table.grad[1] == 0


def means_of_batches_are_not_the_mean() -> None:
    right = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert float(torch.stack([b.mean() for b in right.split(3)]).mean()) == 0.5
    assert float(right.mean()) == 0.75


def mean_of_batch_f1_is_not_f1() -> None:
    predicted, labels = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])

    def recall(p: torch.Tensor, y: torch.Tensor) -> float:
        return float((p & y).sum()) / max(int(y.sum()), 1)

    by_batch = [recall(p, y) for p, y in zip(predicted.split(2), labels.split(2), strict=True)]
    assert sum(by_batch) / 2 == 0.25 and recall(predicted, labels) == 0.5


def accuracy_of_the_majority() -> None:
    labels = torch.tensor([0] * 95 + [1] * 5)
    always = torch.zeros(100, dtype=torch.long)
    assert float((always == labels).float().mean()) == pytest.approx(0.95)
    assert int(((always == 1) & (labels == 1)).sum()) == 0


def micro_f1_is_accuracy() -> None:
    predicted, labels = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2, 2, 1])
    tp = sum(int(((predicted == c) & (labels == c)).sum()) for c in range(3))
    fp = sum(int(((predicted == c) & (labels != c)).sum()) for c in range(3))
    assert tp / (tp + fp) == float((predicted == labels).float().mean())


def the_threshold_moves_precision_and_recall() -> None:
    p, y = torch.tensor([0.9, 0.6, 0.4, 0.2]), torch.tensor([1, 0, 1, 0])

    def at(t: float) -> tuple[float, float]:
        hit = float(((p >= t) & (y == 1)).sum())
        return hit / float((p >= t).sum()), hit / float(y.sum())

    assert at(0.8)[0] > at(0.3)[0] and at(0.8)[1] < at(0.3)[1]


def a_few_confident_mistakes_raise_the_loss() -> None:
    labels = torch.zeros(10, dtype=torch.long)
    early = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 3)
    late = torch.tensor([[8.0, 0.0]] * 8 + [[0.0, 8.0]] * 2)
    accuracy = [float((x.argmax(1) == labels).float().mean()) for x in (early, late)]
    assert accuracy[0] < accuracy[1]
    assert F.cross_entropy(early, labels) < F.cross_entropy(late, labels)


def accuracy_moves_in_steps() -> None:
    labels = torch.tensor([1.0, 1.0])
    before, after = torch.tensor([-2.0, 1.0]), torch.tensor([-0.1, 2.0])
    assert torch.equal(before > 0, after > 0)
    loss = F.binary_cross_entropy_with_logits
    assert loss(after, labels) < loss(before, labels)


def perplexity_is_exp_of_the_token_mean() -> None:
    vocabulary = 1000
    loss = F.cross_entropy(torch.zeros(4, vocabulary), torch.arange(4))
    assert math.exp(float(loss)) == pytest.approx(vocabulary, rel=1e-3)


def the_best_of_many_is_lucky() -> None:
    scores = 0.5 + 0.02 * torch.randn(100, 50)  # fifty settings, all as good as each other
    assert float(scores.max(1).values.mean()) > 0.53 > float(scores.mean())


def a_prior_bias_starts_at_the_base_rate() -> None:
    rate = 0.01
    labels = torch.tensor([1.0] + [0.0] * 99)
    prior = torch.full((100,), math.log(rate / (1 - rate)))
    loss = F.binary_cross_entropy_with_logits
    assert loss(prior, labels) < 0.06 < 0.69 < loss(torch.zeros(100), labels)
