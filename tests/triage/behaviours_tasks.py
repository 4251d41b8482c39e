"""What detection, segmentation, speech, diffusion, reinforcement learning and graphs rest on, as their claims say it. Each function fails if it is not so."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


# --- detection -----------------------------------------------------------------------------------------------------------------------
def a_background_class_needs_its_own_logit() -> None:
    anchors = torch.tensor([0, 0, 0, 1])  # 0 is what no object covers
    assert F.cross_entropy(torch.zeros(4, 2), anchors).isfinite()
    try:
        F.cross_entropy(torch.zeros(4, 5), torch.tensor([1, 2, 3, 5]))  # five classes, from 1
    except IndexError:
        return
    raise AssertionError


def an_empty_box_has_an_infinite_target() -> None:
    box, anchor = torch.tensor([3.0, 3.0, 3.0, 5.0]), torch.tensor([0.0, 0.0, 4.0, 4.0])
    size = (box[2:] - box[:2]) / (anchor[2:] - anchor[:2])
    assert size.log().isinf().any()


def an_empty_target_keeps_its_shape() -> None:
    boxes = torch.zeros(0, 4)
    assert (boxes[:, 2:] - boxes[:, :2]).shape == (0, 2)
    try:
        torch.zeros(0)[:, 2:]
    except IndexError:
        return
    raise AssertionError


def detection_batches_are_lists() -> None:
    pairs = [(torch.ones(3, 2, 2), torch.ones(n, 4)) for n in (1, 3)]
    try:
        next(iter(DataLoader(pairs, batch_size=2)))  # type: ignore[arg-type]
    except RuntimeError as error:
        assert "stack" in str(error)
    else:
        raise AssertionError


# --- segmentation --------------------------------------------------------------------------------------------------------------------
def a_mask_of_255_breaks_the_loss() -> None:
    mask, logits = torch.tensor([0.0, 255.0]), torch.tensor([-5.0, 5.0])
    assert F.binary_cross_entropy_with_logits(logits, mask) < 0
    p = logits.sigmoid()
    assert 2 * (p * mask).sum() / (p.sum() + mask.sum()) > 1
    between = F.interpolate(torch.tensor([[[0.0, 2.0]]]), 4, mode="linear").unique()
    nearest = F.interpolate(torch.tensor([[[0.0, 2.0]]]), 4, mode="nearest").unique()
    assert len(between) > 2 and nearest.tolist() == [0.0, 2.0]


def two_softmax_logits_are_one_sigmoid() -> None:
    logits, mask = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 0])
    one = F.binary_cross_entropy_with_logits(logits[:, 1] - logits[:, 0], mask.float())
    assert torch.allclose(F.cross_entropy(logits, mask), one, atol=1e-6)
    assert (torch.randn(6, 1).softmax(1) == 1).all()


def background_alone_scores_high() -> None:
    mask = torch.zeros(1000)
    mask[:20] = 1
    guess = torch.zeros(1000)
    assert (guess == mask).float().mean() == 0.98
    background = 2 * ((1 - guess) * (1 - mask)).sum() / ((1 - guess).sum() + (1 - mask).sum())
    assert background > 0.98 and (guess * mask).sum() == 0


def dice_of_an_empty_mask_jumps() -> None:
    empty, full = torch.zeros(100), torch.cat([torch.ones(50), torch.zeros(50)])

    def dice(p: torch.Tensor, y: torch.Tensor) -> float:
        return float((2 * (p * y).sum() + 1e-6) / (p.sum() + y.sum() + 1e-6))

    one, ten = torch.zeros(100), torch.zeros(100)
    one[0], ten[:10] = 1, 1
    assert dice(empty, empty) == 1 and dice(one, empty) < 1e-5 and dice(ten, empty) < 1e-5
    both = torch.cat([empty, full])  # over a batch the second image keeps the slope
    assert dice(torch.cat([one, full]), both) > dice(torch.cat([ten, full]), both) > 0.8


# --- speech --------------------------------------------------------------------------------------------------------------------------
def the_blank_must_not_be_a_target() -> None:
    torch.manual_seed(0)
    logits = torch.randn(8, 1, 4)
    lengths = torch.tensor([8]), torch.tensor([2])
    right = F.ctc_loss(logits.log_softmax(-1), torch.tensor([[1, 2]]), *lengths, blank=0)
    moved = logits[..., [1, 2, 3, 0]]  # the same model with the blank as the last class
    last = F.ctc_loss(moved.log_softmax(-1), torch.tensor([[0, 1]]), *lengths, blank=3)
    assert torch.allclose(right, last, atol=1e-5)
    wrong = F.ctc_loss(logits.log_softmax(-1), torch.tensor([[0, 2]]), *lengths, blank=0)
    exact = F.ctc_loss(logits.log_softmax(-1), torch.tensor([[2]]), lengths[0], torch.tensor([1]))
    assert not torch.allclose(wrong, exact, atol=1e-3)


def ctc_is_negative_without_log_softmax() -> None:
    logits, lengths = torch.full((8, 1, 4), 3.0), (torch.tensor([8]), torch.tensor([2]))
    assert F.ctc_loss(logits, torch.tensor([[1, 2]]), *lengths) < 0
    assert F.ctc_loss(logits.log_softmax(-1), torch.tensor([[1, 2]]), *lengths) > 0


def ctc_learns_blanks_first() -> None:
    torch.manual_seed(0)
    data = torch.randn(4, 24, 8)
    targets = torch.randint(1, 6, (4, 3))
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 6))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    lengths = torch.full((4,), 24), torch.full((4,), 3)
    shares = []
    for _ in range(150):
        out = net(data).log_softmax(-1)
        shares.append((out.argmax(-1) == 0).float().mean().item())
        loss = F.ctc_loss(out.transpose(0, 1), targets, *lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert max(shares[3:60]) > 0.95 and shares[-1] < 0.95 and loss < 0.3


def a_wave_read_at_another_rate_is_lower() -> None:
    wave = torch.sin(2 * math.pi * 440 * torch.arange(44100) / 44100)
    peak = int(torch.fft.rfft(wave).abs().argmax())  # in cycles over all samples
    assert abs(peak * 16000 / len(wave) - 160) < 1  # 440 Hz is heard as 160 Hz


def a_doubled_start_token_shifts_targets() -> None:
    from transformers.models.whisper.modeling_whisper import shift_tokens_right

    start, labels = 9, torch.tensor([[9, 4, 5]])
    assert shift_tokens_right(labels, 0, start).tolist() == [[9, 9, 4]]
    assert shift_tokens_right(labels[:, 1:], 0, start).tolist() == [[9, 4]]


# --- diffusion -----------------------------------------------------------------------------------------------------------------------
def _kept(steps: int = 1000) -> torch.Tensor:
    return (1 - torch.linspace(1e-4, 0.02, steps)).cumprod(0)


def one_denoising_step_needs_the_same_schedule() -> None:
    x, noise, t = torch.randn(100), torch.randn(100), 500
    kept = _kept()[t]
    noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
    assert torch.allclose((noisy - (1 - kept).sqrt() * noise) / kept.sqrt(), x, atol=1e-4)
    other = _kept(250)[t // 4]  # another number of timesteps with the same betas
    wrong = (noisy - (1 - other).sqrt() * noise) / other.sqrt()
    assert (wrong - x).abs().mean() > 0.2


def noise_and_image_predictions_are_equivalent() -> None:
    x, noise, kept = torch.randn(50), torch.randn(50), _kept()[700]
    noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
    v = kept.sqrt() * noise - (1 - kept).sqrt() * x
    assert torch.allclose(kept.sqrt() * noisy - (1 - kept).sqrt() * v, x, atol=1e-5)
    assert torch.allclose(kept.sqrt() * v + (1 - kept).sqrt() * noisy, noise, atol=1e-5)


def noise_schedules_expect_unit_variance() -> None:
    kept = _kept()[500]
    for scale, same in ((1.0, True), (5.0, False)):
        x = scale * torch.randn(20_000)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * torch.randn_like(x)
        assert (abs(noisy.std().item() - 1) < 0.05) == same


def an_untrained_null_condition_is_arbitrary() -> None:
    table = nn.Embedding(3, 4)  # two classes and the empty condition, which is never drawn
    table(torch.tensor([0, 1, 1])).sum().backward()
    assert table.weight.grad is not None and not table.weight.grad[2].any()


def an_undecided_hinge_discriminator_costs_two() -> None:
    real, fake = torch.zeros(4), torch.zeros(4)
    assert F.relu(1 - real).mean() + F.relu(1 + fake).mean() == 2


# --- reinforcement learning ----------------------------------------------------------------------------------------------------------
def explained_variance_is_one_minus_the_residual() -> None:
    returns = torch.randn(1000) * 300 + 500

    def explained(value: torch.Tensor) -> float:
        return float(1 - (returns - value).var() / returns.var())

    assert explained(returns) == 1 and abs(explained(torch.zeros(1000))) < 1e-5
    assert explained(-returns) < 0


def the_policy_loss_is_not_a_measure() -> None:
    advantages = torch.randn(64) * 9 + 4
    advantages = (advantages - advantages.mean()) / advantages.std()
    assert (-(torch.ones(64) * advantages).mean()).abs() < 1e-6  # ratio 1: the first epoch


def value_loss_scales_with_the_square_of_returns() -> None:
    returns, value = torch.randn(100), torch.zeros(100)
    small, large = F.mse_loss(value, returns), F.mse_loss(10 * value, 10 * returns)
    assert torch.allclose(large, 100 * small)


def large_policy_steps_leave_the_ratio_range() -> None:
    logits = torch.zeros(1, 4)
    for size, outside in ((0.05, False), (2.0, True)):
        moved = logits + size * torch.tensor([[1.0, -1.0, 0.0, 0.0]])
        ratio = moved.softmax(-1) / logits.softmax(-1)
        assert bool(((ratio < 0.8) | (ratio > 1.2)).any()) == outside


def a_time_limit_is_not_an_end() -> None:
    gamma, value = 0.9, 0.0
    for _ in range(200):
        value = 1 + gamma * value  # a reward of 1 forever
    assert abs(value - 1 / (1 - gamma)) < 1e-3
    assert value > 5 * (1 + gamma * 0)  # what a target without bootstrapping says at the limit


def tanh_needs_its_correction() -> None:
    normal = torch.distributions.Normal(torch.tensor(0.3), torch.tensor(0.7))
    squashed = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.transforms.TanhTransform()]
    )
    u = torch.tensor(0.8)
    by_hand = normal.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
    assert torch.allclose(squashed.log_prob(torch.tanh(u)), by_hand, atol=1e-5)
