"""What claims of the fields rest on (`claims/domains-notes.md`): detection, speech, images, tables, agents, language models."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def negatives_teach_the_background() -> None:
    scores = torch.zeros(10, requires_grad=True)
    labels = torch.tensor([1.0] + [0.0] * 9)
    F.binary_cross_entropy_with_logits(scores, labels).backward()
    assert scores.grad is not None and (scores.grad[1:] > 0).all()  # pushed down without an image


def small_data_wants_few_parameters() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 20), torch.randn(8, 1)
    fit = torch.linalg.lstsq(x, y).solution
    new_x, new_y = torch.randn(200, 20), torch.randn(200, 1)
    assert F.mse_loss(x @ fit, y) < 1e-6 < 1 < F.mse_loss(new_x @ fit, new_y)


def masks_are_resized_by_nearest() -> None:
    mask = torch.tensor([[[[0.0, 2.0]]]])
    near = F.interpolate(mask, size=(1, 4), mode="nearest")
    smooth = F.interpolate(mask, size=(1, 4), mode="bilinear", align_corners=False)
    assert set(near.unique().tolist()) == {0.0, 2.0}
    assert not set(smooth.unique().tolist()) <= {0.0, 2.0}


def dice_ignores_the_size_of_an_object() -> None:
    def losses(pixels: int) -> tuple[float, float]:
        truth = torch.zeros(10_000)
        truth[:pixels] = 1
        found = torch.full((10_000,), 1e-4)  # nothing is found
        dice = 1 - 2 * (found * truth).sum() / (found.sum() + truth.sum())
        return F.binary_cross_entropy(found, truth).item(), dice.item()

    (small, small_dice), (large, large_dice) = losses(10), losses(1000)
    assert large > 50 * small and abs(small_dice - large_dice) < 0.1


def blanks_come_first() -> None:
    def loss(blank: float) -> float:
        logits = torch.zeros(50, 1, 30)
        logits[..., 0] = blank
        return F.ctc_loss(
            logits.log_softmax(-1), torch.tensor([[3, 4, 5]]), torch.tensor([50]), torch.tensor([3])
        ).item()

    assert loss(5.0) < loss(0.0)  # of all guesses that see nothing the blank is better


def the_mean_of_several_outcomes_is_none() -> None:
    outcomes = torch.tensor([-1.0, 1.0])
    guess = torch.tensor(0.5, requires_grad=True)
    optimizer = torch.optim.SGD([guess], lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        (guess - outcomes).square().mean().backward()
        optimizer.step()
    assert abs(guess.item()) < 1e-3


def v_prediction_is_defined_everywhere() -> None:
    image, noise = torch.randn(4), torch.randn(4)
    alpha, sigma = 0.0, 1.0  # no signal is left
    noisy = alpha * image + sigma * noise
    v = alpha * noise - sigma * image
    assert torch.equal(noisy, noise)  # to name the noise says nothing of the image
    assert torch.allclose(alpha * noisy - sigma * v, image)


def kl_weight_trades_rate_for_distortion() -> None:
    def best_scale(beta: float) -> float:  # of a code z = s x + noise, decoded as well as possible
        scales = torch.linspace(0, 5, 501)
        distortion, rate = 1 / (1 + scales**2), 0.5 * (scales**2 + 1).log()
        return scales[(distortion + beta * rate).argmin()].item()

    assert best_scale(0.1) > best_scale(0.5) > best_scale(3.0) == 0


def polyak_averages_slowly() -> None:
    target, online = torch.zeros(1), torch.ones(1)
    for _ in range(200):
        target.lerp_(online, 0.005)
    assert abs(target.item() - (1 - 1 / math.e)) < 0.01
    gamma, largest = 0.99, 1.0
    assert math.isclose(sum(gamma**n * largest for n in range(5000)), 100, rel_tol=1e-3)


def images_as_bytes_are_four_times_smaller() -> None:
    frame = torch.zeros(84, 84, dtype=torch.uint8)
    assert frame.float().nbytes == 4 * frame.nbytes


def a_scaler_of_everything_leaks() -> None:
    series = torch.arange(100.0)
    past = (series[:80] - series[:80].mean()) / series[:80].std()
    leaked = (series[:80] - series.mean()) / series.std()
    assert abs(past.mean()) < 1e-5 and leaked.mean() < -0.3
    window = series[40:50]
    later = series[80:90]
    assert torch.allclose(window - window.mean(), later - later.mean())  # the level is gone


def quantiles_tame_heavy_tails() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000).mul(3).exp()
    standardised = (x - x.mean()) / x.std()
    ranks = x.argsort().argsort() / 1000
    assert standardised.max() > 8 and ranks.max() < 1


def popular_items_are_frequent_negatives() -> None:
    torch.manual_seed(0)
    popularity = torch.tensor([0.9, 0.1])
    batch = torch.multinomial(popularity, 1000, replacement=True)
    assert (batch == 0).float().mean() > 0.85
    scores = torch.log(popularity) + 1.0  # what in-batch sampling makes of two equally liked items
    corrected = scores - torch.log(popularity)
    assert torch.allclose(corrected[0], corrected[1])


def random_batches_hold_few_positives() -> None:
    torch.manual_seed(0)
    batch = torch.randint(1000, (64,))
    assert batch.unique().numel() > 55
    balanced = torch.arange(16).repeat_interleave(4)
    assert all((balanced == c).sum() == 4 for c in balanced)


def chance_of_a_contrastive_batch() -> None:
    same = F.normalize(torch.ones(64, 8), dim=1)
    loss = F.cross_entropy(same @ same.T / 0.07, torch.arange(64))
    assert abs(loss.item() - math.log(64)) < 1e-3


def plain_training_moves_all_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    old = torch.randn(50, 4)
    before = model(old).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8).long()).backward()
        optimizer.step()
    assert (model(old) - before).abs().mean() > 0.5


def a_repeated_sample_weighs_more() -> None:
    losses = torch.tensor([1.0, 2.0])
    assert torch.cat([losses, losses[1:]]).mean() > losses.mean()


def new_tokens_begin_random() -> None:
    embedding, rank = nn.Embedding(4, 8), 2
    embedding.weight.requires_grad_(False)
    down, up = torch.randn(rank, 8), torch.zeros(8, rank)
    tokens = embedding(torch.tensor([3]))
    out = tokens + tokens @ down.T @ up.T  # an adapter behind it leaves the row as it is
    assert torch.equal(out, tokens) and not embedding.weight.requires_grad


def packed_neighbours_are_seen() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    q = torch.randn(1, 1, 4, 8)
    value = torch.randn(1, 1, 4, 8)
    changed = value.clone()
    changed[:, :, 0] += 1  # another document, before
    out = [F.scaled_dot_product_attention(q, q, v, is_causal=True) for v in (value, changed)]
    assert not torch.allclose(out[0][:, :, 3], out[1][:, :, 3])
    document = torch.tensor([0, 0, 1, 1])
    apart = (document[:, None] == document) & torch.ones(4, 4).tril().bool()
    out = [F.scaled_dot_product_attention(q, q, v, attn_mask=apart) for v in (value, changed)]
    assert torch.allclose(out[0][:, :, 3], out[1][:, :, 3])
    assert callable(create_block_mask)


def balanced_routing_costs_one() -> None:
    def cost(chosen: torch.Tensor, probabilities: torch.Tensor, n: int) -> float:
        share = torch.bincount(chosen, minlength=n) / chosen.numel()
        return n * (share * probabilities.mean(0)).sum().item()

    n = 4
    assert cost(torch.arange(n), torch.full((n, n), 1 / n), n) == 1
    assert cost(torch.zeros(n).long(), torch.eye(n)[:1].expand(n, n), n) == n


def saving_costs_its_size() -> None:
    assert round(math.sqrt(2 * 60 * 86400) / 60, -1) == 50  # Young's interval, in minutes


def small_test_sets_are_noisy() -> None:
    assert math.isclose(math.sqrt(0.9 * 0.1 / 10_000), 0.003)
    assert round(math.sqrt(0.9 * 0.1 / 1_000), 2) == 0.01


def errors_in_logs_are_ratios() -> None:
    prices, twice = torch.tensor([10.0, 1e6]), torch.tensor([20.0, 2e6])
    errors = (torch.log1p(twice) - torch.log1p(prices)).square()
    assert errors.max() / errors.min() < 1.2
    torch.manual_seed(0)
    sample = torch.randn(200_000, dtype=torch.float64)
    assert abs(sample.exp().mean() - math.exp(0.5)) < 0.02 < sample.exp().mean() - 1


def mixed_targets_keep_their_entropy() -> None:
    target = torch.tensor([[0.7, 0.3]])
    perfect = target.log()
    assert abs(F.cross_entropy(perfect, target).item() - 0.611) < 1e-3


def xla_is_a_device_of_autocast() -> None:
    assert torch.amp.is_autocast_available("xla")


def a_second_look_is_easier() -> None:
    torch.manual_seed(0)
    model = nn.Linear(200, 1)
    x, y = torch.randn(20, 200), torch.randn(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    epochs = []
    for _ in range(2):
        seen = []
        for i in range(20):
            loss = F.mse_loss(model(x[i]), y[i])
            seen.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epochs.append(sum(seen) / 20)
    assert epochs[1] < 0.8 * epochs[0]
